// Values that stay from evaluation to evaluation (Keep::cached): one place for all programs, which nothing
// else takes; what is refused; and that programs which mix them up are found.
#include <gtest/gtest.h>

#include <functional>

#include "tests/program/mesh_programs.h"
#include "tests/program/small_models.h"
#include "tests/refusal.h"

namespace tessera::testing {
namespace {

constexpr ValueId kRows = 0, kCache = 1;

// Forward reads its cache behind what it writes there.
UnitGraph cached_graph(std::int64_t rows) {
  UnitGraph graph;
  graph.forward_only = true;
  graph.output_bytes = 64 * rows;
  graph.values = {{.name = "rows", .bytes = 32 * rows},
                  {.name = "cache", .bytes = 4096, .keep = Keep::cached}};
  graph.parts = {{.name = "make", .reads = {SharedValue::input, SharedValue::batch}, .writes = {kRows}},
                 {.name = "look", .reads = {kRows, kCache}, .writes = {kCache, SharedValue::output}}};
  return graph;
}

StepSpec cached_spec(int units, std::int64_t rows) {
  StepSpec spec{.kind = StepKind::evaluate,
                .strategy = {},
                .activations = {.units = {}, .batch_bytes = 256},
                .order = {}};
  for (int unit = 0; unit < units; ++unit) spec.activations.units.push_back(cached_graph(rows));
  return spec;
}

TEST(CachedValues, StayInOnePlaceForAllPrograms) {
  const Layout layout(chain(3, 100), 1);
  const std::vector<StepSpec> specs = {cached_spec(3, 1), cached_spec(3, 7)};
  PlannedPrograms planned = build_and_plan(layout, {}, specs);
  const CategoryBytes& peak = planned.plan.space(Space::device).at_peak;
  EXPECT_EQ(peak[static_cast<std::size_t>(Category::cache)], 3 * 4096);
  int caches = 0;
  for (const BufferOf& of : persistent_buffers(planned.programs)) {
    const Buffer& buffer = planned.programs[of.program].buffers[of.buffer];
    if (buffer.role != BufferRole::cache) continue;
    ++caches;
    EXPECT_EQ(of.program, 0);
    EXPECT_EQ(buffer.index, kCache);
    EXPECT_EQ(buffer.category, Category::cache);
    EXPECT_TRUE(buffer.persistent);
  }
  EXPECT_EQ(caches, 3);
  EXPECT_TRUE(verify_turns(planned.programs, planned.plan).ok());
}

TEST(CachedValues, ProgramsAreProved) {
  for (const Mesh& mesh : {Mesh{}, Mesh{.shard = 2}, Mesh{.pipeline = 3}}) {
    StepSpec spec = cached_spec(3, 4);
    if (mesh.shard > 1) spec.strategy.placements = Placements::of_stage(3);
    const WholeMesh made(chain(3, 100), mesh, spec);
    EXPECT_TRUE(made.verified().ok()) << made.verified().to_string();
    EXPECT_TRUE(made.proved().ok()) << made.proved().to_string();
  }
}

// A unit that looks into another one's cache.
TEST(CachedValues, AnotherUnitsIsFound) {
  WholeMesh made(chain(3, 100), {}, cached_spec(3, 4));
  std::vector<BufferId> caches;
  for (BufferId id = 0; id < made.programs[0].buffers.count(); ++id)
    if (made.programs[0].buffers[id].role == BufferRole::cache) caches.push_back(id);
  ASSERT_EQ(caches.size(), 3U);
  for (Instruction& instruction : made.programs[0].instructions)
    for (Operand& operand : instruction.operands)
      if (operand.buffer == caches[1]) operand.buffer = caches[2];
  EXPECT_FALSE(made.verified_alone().ok());
  EXPECT_FALSE(made.proved().ok());
}

std::string refusal_of(const StepSpec& spec) {
  return refusal([&] { build_step(Layout(chain(1, 100), 1), {}, spec); });
}

TEST(CachedValues, WhatMeansNothingIsRefused) {
  const auto spoilt = [](const std::function<void(UnitGraph&, StepSpec&)>& spoil) {
    StepSpec spec = cached_spec(1, 4);
    spoil(spec.activations.units[0], spec);
    return refusal_of(spec);
  };
  EXPECT_EQ(spoilt([](UnitGraph&, StepSpec&) {}), "accepted");
  EXPECT_EQ(spoilt([](UnitGraph&, StepSpec& of) { of.kind = StepKind::train; }),
            "unit 'block.0' is forward_only, and the step is of kind train; it runs in evaluations");
  EXPECT_EQ(spoilt([](UnitGraph&, StepSpec& of) { of.microbatches = 2; }),
            "value 'cache' of unit 'block.0' is cached, which takes one microbatch; the step has 2");
  EXPECT_EQ(
      spoilt([](UnitGraph& of, StepSpec&) { std::erase(of.parts[1].reads, kCache); }),
      "part 'look' of unit 'block.0' writes value 'cache' and does not read it; what is cached is changed "
      "in place");
  EXPECT_EQ(
      spoilt([](UnitGraph& of, StepSpec&) { of.parts.push_back({.name = "b", .pass = Pass::backward}); }),
      "part 'b' of unit 'block.0' is of backward, and its unit is forward_only");
  EXPECT_EQ(spoilt([](UnitGraph& of, StepSpec&) {
              of.forward_only = false;
              of.parts.push_back({.name = "b", .pass = Pass::backward});
            }),
            "value 'cache' of unit 'block.0' is cached, and its unit is not forward_only");
  EXPECT_EQ(
      spoilt([](UnitGraph& of, StepSpec&) {
        of.values.push_back({.name = "above", .bytes = 8, .keep = Keep::cached, .over = kRows});
      }),
      "value 'above' of unit 'block.0' is over another and kept as cached; only what a pass needs can be");
  EXPECT_EQ(spoilt([](UnitGraph& of, StepSpec&) {
              of.values.push_back({.name = "above", .bytes = 8, .over = kCache});
            }),
            "value 'above' of unit 'block.0' is over 'cache', which is cached: nothing may take its place");
}

}  // namespace
}  // namespace tessera::testing
