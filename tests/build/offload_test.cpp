// Programs with states, gradients and parameters off the device: proved over every small mesh, and what they
// hold where.
#include <gtest/gtest.h>

#include <algorithm>

#include "tessera/error.h"
#include "tessera/plan_memory.h"
#include "tests/program/mesh_programs.h"
#include "tests/program/sampled.h"
#include "tests/program/sanitized.h"
#include "tests/program/small_models.h"

namespace tessera {
namespace {

using testing::kSanitized;
using testing::WholeMesh;

std::vector<Offload> offloads() {
  std::vector<Offload> all;
  for (const Space states : {Space::device, Space::host, Space::disk})
    for (const Space parameters : {Space::device, Space::host, Space::disk})
      for (const double on_device : {0.0, 0.5})
        for (const int staged : {1, 2, 4}) {
          if (states == Space::device && on_device > 0) continue;
          if (states != Space::disk && parameters != Space::disk && staged != 2) continue;
          all.push_back({states, on_device, parameters, staged});
        }
  return all;
}

StepSpec spec_of(int stage, const Offload& offload, int microbatches, int units) {
  StepSpec spec;
  spec.microbatches = microbatches;
  spec.strategy.placements = Placements::of_stage(stage);
  spec.strategy.offload = offload;
  spec.activations = testing::activations(units);
  return spec;
}

std::string name(const Offload& offload) {
  return "states " + std::string(name_of(offload.states)) + ", parameters " +
         std::string(name_of(offload.parameters)) + ", on device " +
         std::to_string(offload.states_on_device) + ", staged " + std::to_string(offload.staged);
}

TEST(OffloadPrograms, AreProvedOnEveryMesh) {
  const int each = testing::sampled_each(5);  // a prime: it meets every value of each axis
  int proved = 0, index = 0;
  for (const Mesh& mesh : testing::small_meshes()) {
    if (kSanitized && mesh.world() > 4) continue;
    for (const Offload& offload : offloads())
      for (int stage = 0; stage <= 3; ++stage)
        for (const int microbatches : {1, 3})
          for (const bool tied : {false, true})
            for (const auto& [sliced, update] :
                 {std::pair(false, UpdateWhen::decided), std::pair(true, UpdateWhen::decided),
                  std::pair(false, UpdateWhen::reduced), std::pair(true, UpdateWhen::reduced),
                  std::pair(false, UpdateWhen::next), std::pair(true, UpdateWhen::next)}) {
              if (update == UpdateWhen::next && offload.states == Space::device) continue;
              if (offload.parameters != Space::device && stage < 3) continue;
              if (sliced && (stage == 0 || mesh.replicate == 1)) continue;
              const std::vector<UnitSpec> units = tied ? testing::tied_model(mesh.pipeline)
                                                       : testing::chain(mesh.pipeline + 1, 100, DType::fp32);
              StepSpec spec = spec_of(stage, offload, microbatches, static_cast<int>(units.size()));
              spec.strategy.reduce = (proved & 1) != 0 ? ReduceWhen::each : ReduceWhen::last;
              spec.strategy.update = update;
              spec.strategy.prefetch = proved % 3;
              spec.strategy.state_over_replicas = sliced;
              spec.strategy.parameters_over_replicas = sliced && stage == 3;
              if (sliced && offload.parameters != Space::device && mesh.shard == 1) continue;
              if (++index % each != 0) continue;
              const WholeMesh made(units, mesh, spec);
              const VerifyReport report = made.verified();
              ASSERT_TRUE(report.ok())
                  << to_string(mesh) << " stage " << stage << " " << name(offload) << "\n"
                  << report.to_string();
              ++proved;
            }
  }
  EXPECT_GT(proved, (kSanitized ? 2000 : 8000) / each);
}

std::int64_t persistent(const Program& program, Space space, Category category) {
  std::int64_t bytes = 0;
  for (const Buffer& buffer : program.buffers)
    if (buffer.persistent && buffer.space == space && buffer.category == category) bytes += buffer.bytes;
  return bytes;
}

// Ψ parameters of 2 bytes on 2 ranks at stage 3: 12Ψ/2 bytes of states are where they are asked for, 2Ψ/2 of
// parameters likewise, and the device keeps neither. Gradients come and go.
TEST(OffloadPrograms, HoldWhatTheyAreAskedTo) {
  const std::vector<UnitSpec> units = testing::chain(4, 4096 - 7);
  for (const Space states : {Space::device, Space::host, Space::disk})
    for (const Space parameters : {Space::device, Space::host, Space::disk}) {
      const StepSpec spec = spec_of(3, {.states = states, .parameters = parameters}, 2, 4);
      const WholeMesh made(units, {.shard = 2}, spec);
      std::int64_t shards = 0;
      for (const Flat& flat : made.layout.flats()) shards += flat.shard_numel;
      for (const Space space : {Space::device, Space::host, Space::disk}) {
        EXPECT_EQ(persistent(made.programs[0], space, Category::optimizer_state),
                  space == states ? 12 * shards : 0);
        EXPECT_EQ(persistent(made.programs[0], space, Category::parameters),
                  space == parameters ? 2 * shards : 0);
      }
      EXPECT_EQ(persistent(made.programs[0], Space::device, Category::gradients), 0);
      std::int64_t accumulators = 0;
      for (const Buffer& buffer : made.programs[0].buffers)
        if (buffer.role == BufferRole::accumulator) accumulators += buffer.bytes;
      EXPECT_EQ(accumulators, 4 * shards);
      const std::int64_t on_host = made.plans[0].space(Space::host).live_peak_bytes;
      if (states == Space::device && parameters == Space::device) {
        EXPECT_EQ(on_host, 0);
      }
      // Windows on two units' states, their parameters on the way, every unit's gradient.
      const std::int64_t unit = shards / 4;
      if (states == Space::disk) {
        EXPECT_LE(on_host, 4 * shards + 2 * (12 + 2) * unit + (parameters == Space::host ? 2 * shards : 0));
      }
    }
}

TEST(OffloadPrograms, ShareKeepsTheFirstUnitsOnTheDevice) {
  const std::vector<UnitSpec> units = testing::chain(4, 4096 - 7);
  for (const double share : {0.0, 0.25, 0.5, 1.0}) {
    const WholeMesh made(units, {}, spec_of(0, {.states = Space::host, .states_on_device = share}, 1, 4));
    int on_device = 0, updates_on_host = 0;
    for (const Buffer& buffer : made.programs[0].buffers)
      on_device += buffer.role == BufferRole::master && buffer.space == Space::device;
    for (const Instruction& instruction : made.programs[0].instructions)
      updates_on_host += instruction.op == Opcode::update && instruction.lane == Lane::host;
    EXPECT_EQ(on_device, static_cast<int>(4 * share));
    EXPECT_EQ(updates_on_host, 4 - static_cast<int>(4 * share));
  }
}

// A gradient goes down as soon as its unit is reduced: before the next unit's is.
TEST(OffloadPrograms, GradientsGoDownDuringBackward) {
  const WholeMesh made(testing::chain(4, 100), {.shard = 2}, spec_of(2, {.states = Space::host}, 1, 4));
  const std::vector<Instruction>& instructions = made.programs[0].instructions;
  int down = 0;
  for (std::size_t id = 0; id < instructions.size(); ++id) {
    if (instructions[id].op != Opcode::copy || instructions[id].lane != Lane::download) continue;
    ++down;
    const auto next = std::find_if(instructions.begin() + static_cast<std::ptrdiff_t>(id), instructions.end(),
                                   [](const Instruction& of) { return of.op == Opcode::reduce_scatter; });
    const bool behind_the_last = next == instructions.end();
    EXPECT_EQ(behind_the_last, down == 4);
  }
  EXPECT_EQ(down, 4);
}

// With given durations: behind the decision, updates and copies overlap but for the first and the last.
TEST(OffloadPrograms, UpdatesOverlapCopies) {
  constexpr int kUnits = 12;
  for (const Space states : {Space::host, Space::disk})
    for (const double update : {8.0, 20.0, 60.0})
      for (const int staged : {2, 3}) {
        const WholeMesh made(testing::chain(kUnits, 4096 - 7), {.shard = 2},
                             spec_of(2, {.states = states, .staged = staged}, 1, kUnits));
        const Program& program = made.programs[0];
        double copies = 0, decided = 0, last_copies = 0;
        const CostModel cost{.duration_us = [&](const Program& of, const Instruction& instruction) {
          if (instruction.op == Opcode::update) return update;
          if (instruction.op == Opcode::reduce_scatter)
            return 2.0;  // as long as its gradient takes to go down
          if (instruction.op != Opcode::copy) return 1.0;
          return static_cast<double>(of.buffers[instruction.buffer(Role::to)].bytes) / 4096;
        }};
        const Timeline timeline = simulate(program, made.layout, {.shard = 2}, cost);
        for (const TraceSpan& span : timeline.spans) {
          const Instruction& instruction = program.instructions[span.instruction];
          if (instruction.op == Opcode::reduce_scalars) decided = span.end_us;
          // The busiest lane: io for states on the disk, else uploads.
          if (span.start_us < decided || decided == 0 || instruction.op != Opcode::copy) continue;
          if ((instruction.lane == Lane::io) == (states == Space::disk))
            copies += span.end_us - span.start_us;
          if (program.flat_of(instruction) == kUnits - 1) last_copies += span.end_us - span.start_us;
        }
        const double phase = timeline.total_us - decided;
        EXPECT_LE(phase, 1.05 * std::max(copies, kUnits * update) + update + last_copies)
            << name_of(states) << " update " << update << " staged " << staged;
        EXPECT_GT(phase, 0.99 * std::max(copies, kUnits * update));
      }
}

// Each gradient goes down behind its own reduction, while the backward goes on.
TEST(OffloadPrograms, DownloadsHideBehindBackward) {
  constexpr int kUnits = 12;
  const WholeMesh made(testing::chain(kUnits, 4096 - 7), {.shard = 2},
                       spec_of(2, {.states = Space::host}, 1, kUnits));
  const Program& program = made.programs[0];
  const CostModel cost{.duration_us = [](const Program&, const Instruction& instruction) {
    return instruction.op == Opcode::use ? (instruction.pass == Pass::backward ? 20.0 : 10.0)
           : instruction.op == Opcode::copy && instruction.lane == Lane::download ? 18.0
                                                                                  : 0.0;
  }};
  const Timeline timeline = simulate(program, made.layout, {.shard = 2}, cost);
  EXPECT_LE(timeline.total_us, 1.05 * kUnits * 30.0 + 18.0);
}

// What is updated as soon as it is reduced, too; and behind a forward what the step before left.
TEST(OffloadPrograms, UpdatesHideBehindPasses) {
  constexpr int kUnits = 12;
  constexpr double kForwardUs = 10, kBackwardUs = 20, kUpdateUs = 8, kCopyUs = 1;
  for (const Space states : {Space::host, Space::disk})
    for (const int stage : {1, 2, 3})
      for (const int microbatches : {1, 2}) {
        StepSpec spec = spec_of(stage, {.states = states}, microbatches, kUnits);
        const CostModel cost{.duration_us = [](const Program&, const Instruction& instruction) {
          return instruction.op == Opcode::use
                     ? (instruction.pass == Pass::backward ? kBackwardUs : kForwardUs)
                 : instruction.op == Opcode::update ? kUpdateUs
                 : instruction.op == Opcode::copy   ? kCopyUs
                                                    : 0.0;
        }};
        const auto total_us = [&](UpdateWhen update) {
          spec.strategy.update = update;
          const WholeMesh made(testing::chain(kUnits, 4096 - 7), {.shard = 2}, spec);
          EXPECT_TRUE(made.verified().ok());
          return simulate(made.programs[0], made.layout, {.shard = 2}, cost).total_us;
        };
        const double passes = microbatches * kUnits * (kForwardUs + kBackwardUs);
        const double one = kUpdateUs + 8 * kCopyUs;  // with all its copies
        EXPECT_LE(total_us(UpdateWhen::reduced), 1.05 * passes + one);
        EXPECT_LE(total_us(UpdateWhen::next), 1.05 * passes + one);
        EXPECT_GE(total_us(UpdateWhen::decided), passes + kUnits * kUpdateUs);
      }
}

// The gradients of what the host updates stay there until then, and nowhere else.
TEST(OffloadPrograms, CarriedUpdatesComeFirst) {
  constexpr int kUnits = 6;
  for (const double on_device : {0.0, 0.5})
    for (const int prefetch : {0, 1, 2}) {
      StepSpec spec = spec_of(3, {.states = Space::host, .states_on_device = on_device}, 2, kUnits);
      spec.strategy.update = UpdateWhen::next;
      spec.strategy.prefetch = prefetch;
      const WholeMesh made(testing::chain(kUnits, 4096), {.shard = 2}, spec);
      const Program& program = made.programs[0];
      std::vector<bool> updated(kUnits), used(kUnits);
      int carried = 0;
      for (const Instruction& instruction : program.instructions) {
        const auto unit = static_cast<std::size_t>(std::max(instruction.unit, 0));
        if (instruction.op == Opcode::use) used[unit] = true;
        if (instruction.op != Opcode::update) {
          EXPECT_TRUE(!program.is_carried(instruction) || !used[unit]);
          continue;
        }
        EXPECT_FALSE(updated[unit]);
        updated[unit] = true;
        const bool on_host = instruction.lane == Lane::host;
        EXPECT_EQ(program.is_carried(instruction), on_host);
        EXPECT_EQ(used[unit], !on_host);
        carried += on_host ? 1 : 0;
      }
      EXPECT_EQ(std::ranges::count(updated, true), kUnits);
      EXPECT_EQ(carried, on_device > 0 ? kUnits / 2 : kUnits);
      EXPECT_EQ(persistent(program, Space::host, Category::gradients),
                carried * 4 * made.layout.flat(0).shard_numel);
    }
}

// On the device a gradient's memory is free behind its update, so that those of two units or three are there
// at a time.
TEST(OffloadPrograms, EarlyUpdatesFreeGradients) {
  constexpr int kUnits = 8;
  for (const int stage : {0, 1, 2, 3})
    for (const int world : {1, 2}) {
      StepSpec spec = spec_of(stage, {}, 1, kUnits);
      const auto gradient_bytes = [&](UpdateWhen update) {
        spec.strategy.update = update;
        const WholeMesh made(testing::chain(kUnits, 4096), {.shard = world}, spec);
        std::int64_t most = 0;
        for (const CategoryBytes& at : live_bytes(made.programs[0], Space::device))
          most = std::max(most, at[static_cast<std::size_t>(Category::gradients)]);
        return most;
      };
      // A bf16 gradient and, among several ranks, the fp32 sum.
      const std::int64_t unit = 2 * 4096 + (world == 1 ? 0 : 4 * 4096 / (stage >= 2 ? world : 1));
      EXPECT_LE(gradient_bytes(UpdateWhen::reduced), 3 * unit) << "stage " << stage << " world " << world;
      EXPECT_GE(gradient_bytes(UpdateWhen::decided), (world == 1 ? kUnits : kUnits / world) * 2 * 4096);
    }
}

TEST(OffloadPrograms, MutationsAreFound) {
  const StepSpec spec = spec_of(3, {.states = Space::disk, .parameters = Space::host}, 2, 3);
  const auto spoilt = [&](const std::function<bool(Instruction&)>& change) {
    WholeMesh made(testing::chain(3, 100), {.shard = 2}, spec);
    for (Instruction& instruction : made.programs[0].instructions)
      if (change(instruction)) break;
    return made.verified_alone();
  };
  EXPECT_TRUE(spoilt([](Instruction&) { return false; }).ok());
  EXPECT_FALSE(spoilt([](Instruction& of) {  // an upload on the wrong lane
                 if (of.op != Opcode::copy || of.lane != Lane::upload) return false;
                 of.lane = Lane::download;
                 return true;
               })
                   .ok());
  EXPECT_FALSE(spoilt([](Instruction& of) {  // an update that does not wait for its gradient
                 if (of.op != Opcode::update) return false;
                 of.waits.clear();
                 return true;
               })
                   .ok());
  EXPECT_FALSE(spoilt([](Instruction& of) {  // the host's update moved to the device
                 if (of.op != Opcode::update) return false;
                 of.lane = Lane::compute;
                 return true;
               })
                   .ok());
}

TEST(OffloadPrograms, RefuseWhatMeansNothing) {
  const auto message = [](int stage, const Offload& offload, bool sliced = false) -> std::string {
    try {
      StepSpec spec = spec_of(stage, offload, 1, 2);
      spec.strategy.state_over_replicas = sliced;
      WholeMesh(testing::chain(2, 100), {.replicate = 2, .shard = 2}, spec);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(
      message(2, {.parameters = Space::host}),
      "offload.parameters is host while placements.parameters is replicated; only sharded parameters can "
      "leave the device");
  EXPECT_EQ(message(1, {.states = Space::host, .states_on_device = 1.5}),
            "offload.states_on_device is 1.500000; it must be a share of the units, 0 to 1");
  EXPECT_EQ(
      message(1, {.states_on_device = 0.5}),
      "offload.states_on_device is 0.500000 while offload.states is device, where all are; it must be 0");
  EXPECT_EQ(message(1, {.states = Space::disk, .staged = 0}), "offload.staged is 0; it must be 1 or more");
  EXPECT_EQ(
      message(3, {.parameters = Space::disk}, true),
      "offload.parameters is disk and state_over_replicas is true; that needs parameters_over_replicas, too");
}

}  // namespace
}  // namespace tessera
