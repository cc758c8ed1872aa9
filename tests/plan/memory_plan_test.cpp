#include "tessera/plan_memory.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "tessera/error.h"
#include "tests/program/random_programs.h"

namespace tessera {
namespace {

using testing::RandomPrograms;

Program with(std::vector<Buffer> buffers, std::size_t instructions = 10) {
  Program program;
  program.units = {{.name = "unit"}};
  program.buffers = std::move(buffers);
  program.instructions.resize(instructions);
  return program;
}

Buffer kept(const std::string& name, std::int64_t bytes) {
  return {.name = name, .bytes = bytes, .persistent = true, .lifetimes = {}};
}

Buffer passing(const std::string& name, std::int64_t bytes, std::vector<Lifetime> lifetimes) {
  return {.name = name, .category = Category::activations, .bytes = bytes, .lifetimes = std::move(lifetimes)};
}

std::int64_t aligned(std::int64_t bytes, Space space) {
  const std::int64_t alignment = alignment_of(space);
  return (bytes + alignment - 1) / alignment * alignment;
}

TEST(MemoryPlan, IsEmptyForNothing) {
  EXPECT_EQ(plan_memory({}).space(Space::device).arena_bytes, 0);
  const Program program = with({}, 0);
  const MemoryPlan plan = plan_memory({&program, 1});
  EXPECT_EQ(plan.space(Space::device).live_peak_bytes, 0);
  EXPECT_EQ(plan.offsets.size(), 1u);
}

TEST(MemoryPlan, SharesMemoryWhereLifetimesDoNotMeet) {
  const Program program = with({kept("weights", 1000), passing("a", 700, {{0, 3}}),
                                passing("b", 600, {{4, 6}}), passing("c", 300, {{6, 9}})});
  const MemoryPlan plan = plan_memory({&program, 1});
  const SpacePlan& device = plan.space(Space::device);
  EXPECT_EQ(plan.offset(0, 0), 0);
  EXPECT_EQ(plan.offset(0, 1), 1024);
  EXPECT_EQ(plan.offset(0, 2), 1024);
  EXPECT_EQ(plan.offset(0, 3), 1024 + 768);  // position 6 belongs to both "b" and "c"
  EXPECT_EQ(device.arena_bytes, 1024 + 768 + 300);
  EXPECT_EQ(device.persistent_bytes, 1000);
  EXPECT_EQ(device.live_peak_bytes, 1000 + 600 + 300);
  EXPECT_EQ(device.peak_program, 0);
  EXPECT_EQ(device.peak_instruction, 6);
  EXPECT_EQ(device.at_peak[static_cast<std::size_t>(Category::activations)], 900);
  EXPECT_EQ(device.at_peak[static_cast<std::size_t>(Category::parameters)], 1000);
}

TEST(MemoryPlan, GivesABufferOneAddressInAllItsLives) {
  // "twice" meets "a" in one life and "b" in the other, which do not meet each other.
  const Program program = with({passing("a", 256, {{0, 2}}), passing("b", 256, {{5, 9}}),
                                passing("twice", 256, {{2, 2}, {8, 9}}), passing("between", 512, {{3, 4}})});
  const MemoryPlan plan = plan_memory({&program, 1});
  EXPECT_EQ(plan.space(Space::device).arena_bytes, 512);
  EXPECT_EQ(plan.offset(0, 0), plan.offset(0, 1));
  EXPECT_NE(plan.offset(0, 0), plan.offset(0, 2));
}

// Each two of three buffers meet, never all three: 2 × 256 bytes live at most.
Program meeting_pair_by_pair() {
  return with({passing("a", 256, {{0, 0}, {2, 2}}), passing("b", 256, {{0, 0}, {1, 1}}),
               passing("c", 256, {{1, 1}, {2, 2}})});
}

TEST(MemoryPlan, MovesABufferBetweenItsLivesWhereThatSavesMemory) {
  const Program program = meeting_pair_by_pair();
  const MemoryPlan plan = plan_memory({&program, 1});
  EXPECT_EQ(plan.space(Space::device).arena_bytes, 512);
  EXPECT_EQ(plan.space(Space::device).bound_bytes, 512);
  bool moved = false;
  for (BufferId buffer = 0; buffer < 3; ++buffer)
    moved |= plan.offset(0, buffer, 0) != plan.offset(0, buffer, 1);
  EXPECT_TRUE(moved);
}

TEST(MemoryPlan, BoundSeesBuffersThatMeetPairByPairOnly) {
  Program program = meeting_pair_by_pair();
  for (Buffer& buffer : program.buffers) buffer.one_address = true;
  const SpacePlan device = plan_memory({&program, 1}).space(Space::device);
  EXPECT_EQ(device.live_peak_bytes, 512);
  EXPECT_EQ(device.bound_bytes, 768);
  EXPECT_EQ(device.arena_bytes, 768);
}

TEST(MemoryPlan, KnowsTheLifetimeAtAnInstruction) {
  const Buffer buffer = passing("b", 256, {{1, 2}, {3, 3}, {6, 8}});
  const std::vector<int> expected = {-1, 0, 0, 1, -1, -1, 2, 2, 2, -1};
  for (std::size_t at = 0; at < expected.size(); ++at)
    EXPECT_EQ(lifetime_at(buffer, static_cast<InstructionId>(at)), expected[at]) << at;
  EXPECT_EQ(lifetime_at(kept("k", 256), 5), 0);
}

TEST(MemoryPlan, LetsProgramsShareMemoryButNotStateOrNames) {
  const Program train = with({kept("weights", 256), kept("moments", 512), passing("output", 256, {{0, 4}}),
                              passing("gradient", 1024, {{3, 9}})});
  const Program evaluate =
      with({passing("logits", 1280, {{1, 3}}), kept("weights", 256), passing("output", 256, {{4, 8}})});
  const MemoryPlan plan = plan_memory(std::vector<Program>{train, evaluate});
  EXPECT_EQ(plan.offset(0, 0), plan.offset(1, 1));
  EXPECT_EQ(plan.offset(0, 2), plan.offset(1, 2));
  EXPECT_GE(plan.offset(1, 0), 768) << "evaluation must leave the moments alone";
  EXPECT_EQ(plan.space(Space::device).arena_bytes, 768 + 1280);
  EXPECT_EQ(plan.space(Space::device).persistent_bytes, 768);
  EXPECT_EQ(plan.space(Space::device).live_peak_bytes, 768 + 1280);
  // The first instruction that reaches the maximum, in the first program that does.
  EXPECT_EQ(plan.space(Space::device).peak_program, 0);
  EXPECT_EQ(plan.space(Space::device).peak_instruction, 3);
}

TEST(MemoryPlan, GivesNoMemoryToWhatNeverLives) {
  const Program program = with({passing("unused", 4096, {}), passing("empty", 0, {{0, 9}}), kept("x", 256)});
  EXPECT_EQ(plan_memory({&program, 1}).space(Space::device).arena_bytes, 256);
}

// Bytes that no buffer has: at the arena's begin and end once, between two buffers twice.
TEST(MemoryPlan, LeavesGuardsOnBothSidesOfABuffer) {
  const Program program = with({kept("weights", 1000), kept("moments", 256), passing("a", 700, {{0, 3}}),
                                passing("b", 600, {{3, 6}}), passing("c", 700, {{4, 9}})});
  const MemoryPlan bare = plan_memory({&program, 1}), plan = plan_memory({&program, 1}, 8192);
  EXPECT_EQ(bare.guard_bytes, 0);
  EXPECT_EQ(plan.guard_bytes, 8192);
  EXPECT_EQ(plan.offset(0, 0), 8192);
  EXPECT_EQ(plan.offset(0, 1), 8192 + 1024 + 2 * 8192);
  const std::int64_t behind_persistent = plan.offset(0, 1) + 256 + 8192;
  EXPECT_EQ(plan.offset(0, 2), plan.offset(0, 4)) << "which share memory as without guards";
  const auto [low, high] = std::minmax(plan.offset(0, 2), plan.offset(0, 3));
  EXPECT_EQ(low, behind_persistent + 8192);
  EXPECT_EQ(high, low + 768 + 2 * 8192);
  const SpacePlan& device = plan.space(Space::device);
  EXPECT_EQ(device.arena_bytes, high + (high == plan.offset(0, 3) ? 600 : 700) + 8192);
  EXPECT_EQ(device.live_peak_bytes, bare.space(Space::device).live_peak_bytes);
  EXPECT_EQ(device.at_peak, bare.space(Space::device).at_peak);
  for (const std::int64_t wrong : {-4096, 256, 4097})
    EXPECT_THROW(plan_memory({&program, 1}, wrong), UsageError) << wrong;
}

std::string refusal(const std::vector<Program>& programs) {
  try {
    plan_memory(programs);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(MemoryPlan, RefusesContradictionsByName) {
  const auto names = [](const std::string& message, const std::string& name) {
    return message.find("'" + name + "'") != std::string::npos;
  };
  Buffer on_host = kept("same", 256);
  on_host.space = Space::host;
  EXPECT_TRUE(names(refusal({with({kept("same", 256)}), with({kept("same", 512)})}), "same"));
  EXPECT_TRUE(names(refusal({with({kept("same", 256)}), with({on_host})}), "same"));
  EXPECT_TRUE(names(refusal({with({kept("same", 256)}), with({passing("same", 256, {})})}), "same"));
  EXPECT_TRUE(names(refusal({with({kept("same", 256), kept("same", 256)})}), "same"));
  EXPECT_TRUE(names(refusal({with({passing("late", 256, {{8, 10}})})}), "late"));
  EXPECT_TRUE(names(refusal({with({passing("back", 256, {{5, 4}})})}), "back"));
  EXPECT_TRUE(names(refusal({with({passing("twice", 256, {{1, 3}, {3, 5}})})}), "twice"));
  EXPECT_TRUE(names(refusal({with({passing("early", 256, {{-1, 3}})})}), "early"));
  EXPECT_TRUE(names(refusal({with({passing("negative", -1, {{0, 3}})})}), "negative"));
  EXPECT_EQ(refusal({with({passing("fine", 256, {{0, 3}, {4, 9}})})}), "");
}

bool alive(const Buffer& buffer, InstructionId id) {
  if (buffer.persistent) return true;
  for (const Lifetime& life : buffer.lifetimes) {
    if (life.first <= id && id <= life.last) return true;
  }
  return false;
}

// Checks what the header promises, instruction by instruction and pair by pair.
void check(const std::vector<Program>& programs, const MemoryPlan& plan) {
  std::map<std::string, std::int64_t> kept_address;
  std::map<std::string, Buffer> persistent;
  std::array<std::int64_t, kSpaces> end = {}, persistent_bytes = {}, peak = {};
  for (std::size_t p = 0; p < programs.size(); ++p) {
    for (const Buffer& buffer : programs[p].buffers) {
      const std::vector<std::int64_t>& offsets = plan.offsets.at(p).at(&buffer - &programs[p].buffers[0]);
      ASSERT_EQ(offsets.size(), std::max<std::size_t>(buffer.lifetimes.size(), 1));
      for (const std::int64_t offset : offsets) {
        ASSERT_EQ(offset % alignment_of(buffer.space), 0);
        auto& top = end[static_cast<std::size_t>(buffer.space)];
        const bool lives = buffer.persistent || !buffer.lifetimes.empty();
        if (lives && buffer.bytes > 0) top = std::max(top, offset + buffer.bytes);
        if (buffer.persistent || (buffer.one_address && lives)) {
          ASSERT_EQ(kept_address.try_emplace(buffer.name, offset).first->second, offset) << buffer.name;
        }
      }
      if (buffer.persistent) persistent.emplace(buffer.name, buffer);
    }
  }
  for (const auto& [name, buffer] : persistent)
    persistent_bytes[static_cast<std::size_t>(buffer.space)] += buffer.bytes;
  struct Live {
    const Buffer* buffer;
    std::int64_t begin, end;
  };
  for (std::size_t p = 0; p < programs.size(); ++p) {
    const Program& program = programs[p];
    for (InstructionId id = 0; id < program.instructions.count(); ++id) {
      std::vector<Live> live;
      for (const auto& [name, buffer] : persistent)
        live.push_back({&buffer, kept_address[name], kept_address[name] + buffer.bytes});
      for (std::size_t b = 0; b < program.buffers.size(); ++b) {
        const Buffer& buffer = program.buffers[b];
        for (std::size_t life = 0; life < buffer.lifetimes.size(); ++life) {
          if (id < buffer.lifetimes[life].first || buffer.lifetimes[life].last < id) continue;
          const std::int64_t offset = plan.offsets.at(p).at(b).at(life);
          live.push_back({&buffer, offset, offset + buffer.bytes});
        }
      }
      std::array<std::int64_t, kSpaces> sum = {};
      for (const Live& a : live) {
        sum[static_cast<std::size_t>(a.buffer->space)] += a.buffer->bytes;
        for (const Live& b : live) {
          if (&a == &b || a.buffer->space != b.buffer->space || a.begin == a.end || b.begin == b.end)
            continue;
          ASSERT_TRUE(a.end <= b.begin || b.end <= a.begin)
              << a.buffer->name << " and " << b.buffer->name << " at #" << id;
        }
      }
      for (std::size_t space = 0; space < kSpaces; ++space) peak[space] = std::max(peak[space], sum[space]);
    }
  }
  for (std::size_t space = 0; space < kSpaces; ++space) {
    const SpacePlan& got = plan.spaces[space];
    const auto which = static_cast<Space>(space);
    EXPECT_EQ(got.arena_bytes, which == Space::device ? end[space] : aligned(end[space], which));
    EXPECT_EQ(got.persistent_bytes, persistent_bytes[space]);
    EXPECT_EQ(got.live_peak_bytes, peak[space]);
    EXPECT_EQ(std::accumulate(got.at_peak.begin(), got.at_peak.end(), std::int64_t{0}), peak[space]);
    EXPECT_LE(got.live_peak_bytes, got.bound_bytes);
    EXPECT_LE(got.bound_bytes, aligned(got.arena_bytes, which));
  }
}

TEST(MemoryPlan, KeepsItsPromisesForRandomPrograms) {
  RandomPrograms random(3);
  for (unsigned round = 0; round < 300; ++round) {
    SCOPED_TRACE(round);
    std::vector<Program> programs;
    for (int count = random.pick(1, 3); count > 0; --count) programs.push_back(random.make("buffer", round));
    const MemoryPlan plan = plan_memory(programs);
    check(programs, plan);
    if (HasFatalFailure()) return;
    EXPECT_EQ(plan_memory(programs).offsets, plan.offsets) << "the plan must depend on the programs alone";
  }
}

TEST(MemoryPlan, LiveBytesIsTheCurveUnderThePeak) {
  RandomPrograms random(4);
  for (unsigned round = 0; round < 50; ++round) {
    const Program program = random.make("buffer", round);
    const MemoryPlan plan = plan_memory({&program, 1});
    for (const Space space : {Space::device, Space::host, Space::disk}) {
      const IdVector<CategoryBytes> curve = live_bytes(program, space);
      ASSERT_EQ(curve.size(), program.instructions.size());
      for (InstructionId id = 0; id < curve.count(); ++id) {
        CategoryBytes expected = {};
        for (const Buffer& buffer : program.buffers) {
          if (buffer.space == space && alive(buffer, id))
            expected[static_cast<std::size_t>(buffer.category)] += buffer.bytes;
        }
        ASSERT_EQ(curve[id], expected);
      }
      const SpacePlan& top = plan.space(space);
      EXPECT_EQ(top.at_peak, curve[top.peak_instruction]);
    }
  }
}

}  // namespace
}  // namespace tessera
