#include "tessera/memory_report.h"

#include <algorithm>

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tessera/budget.h"
#include "tessera/error.h"
#include "tessera/plan_memory.h"
#include "tests/plan/gpt2_sizes.h"

namespace tessera {
namespace {

struct Planned {
  IdVector<Program> programs;
  MemoryPlan plan;
};

Planned planned(Recompute recompute) {
  const testing::Gpt2Sizes sizes{
      .name = "small", .layers = 4, .channels = 64, .heads = 4, .vocabulary = 500, .context = 64};
  const Layout layout(sizes.units(), 2);
  StepSpec spec;
  spec.microbatches = 2;
  spec.strategy = {.placements = Placements::of_stage(3), .recompute = recompute};
  spec.activations = sizes.activations(2, 64);
  Planned made;
  made.programs.push_back(build_step(layout, {.shard = 2}, spec));
  spec.kind = StepKind::evaluate;
  made.programs.push_back(build_step(layout, {.shard = 2}, spec));
  made.plan = plan_memory(made.programs);
  return made;
}

nlohmann::json data_of(const std::string& page) {
  const std::size_t begin = page.find("const data = ") + 13;
  return nlohmann::json::parse(page.substr(begin, page.find(";\n", begin) - begin));
}

TEST(MemoryReport, AllBuffersAtThePeakMakeUpThePeak) {
  for (const Recompute recompute : {Recompute::none, Recompute::full}) {
    const Planned made = planned(recompute);
    const auto all = largest_at_peak(made.programs, made.plan, Space::device, 1 << 20);
    std::int64_t sum = 0, before = INT64_MAX;
    for (const LiveBuffer& live : all) {
      const Buffer& buffer = made.programs[live.program].buffers[static_cast<std::size_t>(live.buffer)];
      EXPECT_LE(buffer.bytes, before);
      EXPECT_EQ(live.offset,
                made.plan.offset(live.program, live.buffer, static_cast<std::size_t>(live.lifetime)));
      before = buffer.bytes;
      sum += buffer.bytes;
    }
    EXPECT_EQ(sum, made.plan.space(Space::device).live_peak_bytes);
    EXPECT_EQ(largest_at_peak(made.programs, made.plan, Space::device, 10).size(), 10u);
    EXPECT_TRUE(largest_at_peak(made.programs, made.plan, Space::host, 10).empty());
  }
}

TEST(MemoryReport, TheTableNamesTheLargest) {
  const Planned made = planned(Recompute::none);
  const LiveBuffer first = largest_at_peak(made.programs, made.plan, Space::device, 1).at(0);
  const Buffer& buffer = made.programs[first.program].buffers[static_cast<std::size_t>(first.buffer)];
  const std::string text = describe_largest(made.programs, made.plan, Space::device, 3);
  EXPECT_EQ(std::ranges::count(text, '\n'), 4);
  EXPECT_NE(text.find(buffer.name), std::string::npos);
  EXPECT_NE(text.find(std::to_string(buffer.bytes)), std::string::npos);
}

TEST(MemoryReport, ThePageHoldsEveryLifetimeAndNoForeignMarkup) {
  const Planned made = planned(Recompute::full);
  const std::string page = memory_page(made.programs, made.plan, "a </script><b>title</b> \xff");
  EXPECT_EQ(page.find("__DATA__"), std::string::npos);
  EXPECT_EQ(page.find("</script><b>"), std::string::npos);
  EXPECT_EQ(page.find("http"), std::string::npos) << "the page loads nothing";
  ASSERT_EQ(data_of(page).at("ranks").size(), 1u);
  const nlohmann::json data = data_of(page).at("ranks")[0];
  ASSERT_EQ(data.at("spaces").size(), 1u);
  const nlohmann::json& device = data.at("spaces")[0];
  EXPECT_EQ(device.at("space"), "device");
  EXPECT_EQ(device.at("arena"), made.plan.space(Space::device).arena_bytes);
  ASSERT_EQ(data.at("programs").size(), 2u);
  for (std::size_t index = 0; index < 2; ++index) {
    std::size_t expected = 0, seen = 0;
    for (const Buffer& buffer : made.programs[index].buffers)
      if (buffer.bytes > 0) expected += buffer.lifetimes.size();
    for (const nlohmann::json& buffer : device.at("buffers").at(index)) seen += buffer.at("lives").size();
    EXPECT_EQ(seen, expected);
  }
}

TEST(MemoryReport, ThePageShowsEachRankThatItIsGiven) {
  const Planned first = planned(Recompute::none), second = planned(Recompute::full);
  const std::vector<std::string> names = {"one"};
  std::vector<PagePlan> ranks = {{.label = "rank 0", .programs = first.programs, .memory = &first.plan},
                                 {"rank 1", second.programs, &second.plan, names}};
  const nlohmann::json data = data_of(memory_page(ranks, "two", 1));
  EXPECT_EQ(data.at("shown"), 1);
  ASSERT_EQ(data.at("ranks").size(), 2u);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const nlohmann::json& shown = data.at("ranks")[rank];
    EXPECT_EQ(shown.at("label"), ranks[rank].label);
    EXPECT_EQ(shown.at("spaces")[0].at("arena"), ranks[rank].memory->space(Space::device).arena_bytes);
  }
  EXPECT_EQ(data.at("ranks")[0].at("programs")[0].at("name"), "train");
  EXPECT_EQ(data.at("ranks")[1].at("programs")[0].at("name"), "one");
  EXPECT_EQ(data.at("ranks")[1].at("programs")[1].at("name"), "evaluate");
  EXPECT_THROW(memory_page(ranks, "two", 2), UsageError);
  ranks[0].memory = nullptr;
  EXPECT_THROW(memory_page(ranks, "two"), UsageError);
}

TEST(MemoryReport, EachSpaceThatHoldsAnythingIsShown) {
  const testing::Gpt2Sizes sizes{
      .name = "small", .layers = 4, .channels = 64, .heads = 4, .vocabulary = 500, .context = 64};
  StepSpec spec;
  spec.activations = sizes.activations(2, 64);
  spec.strategy = {.placements = Placements::of_stage(3),
                   .offload = {.states = Space::disk, .parameters = Space::host}};
  const Layout layout(sizes.units(), 2);
  const PlannedPrograms made = build_and_plan(layout, {.shard = 2}, std::vector{spec});
  const std::vector<Space> held = spaces_held(made.plan);
  EXPECT_EQ(held, (std::vector{Space::device, Space::host, Space::disk}));
  EXPECT_EQ(spaces_held(planned(Recompute::none).plan), std::vector{Space::device});
  const nlohmann::json data = data_of(memory_page(made.programs, made.plan, "three")).at("ranks")[0];
  ASSERT_EQ(data.at("spaces").size(), 3u);
  for (std::size_t index = 0; index < 3; ++index) {
    const SpacePlan& space = made.plan.space(held[index]);
    const nlohmann::json& shown = data.at("spaces")[index];
    EXPECT_EQ(shown.at("space"), name_of(held[index]));
    EXPECT_EQ(shown.at("arena"), space.arena_bytes);
    std::int64_t persistent = 0, at_peak = 0;
    for (const nlohmann::json& buffer : shown.at("persistent"))
      persistent += buffer.at("bytes").get<std::int64_t>();
    EXPECT_EQ(persistent, space.persistent_bytes);
    for (const nlohmann::json& buffer : shown.at("buffers")[0])
      for (const nlohmann::json& life : buffer.at("lives"))
        if (life[0] <= space.peak_instruction && space.peak_instruction <= life[1])
          at_peak += buffer.at("bytes").get<std::int64_t>();
    EXPECT_EQ(persistent + at_peak, space.live_peak_bytes);
    const std::string peak = describe_peak(made.programs, space);
    EXPECT_EQ(shown.at("peak"), peak);
    if (held[index] == Space::disk)
      EXPECT_EQ(peak, "all times");
    else
      EXPECT_TRUE(peak.starts_with("#") && peak.ends_with(" of the train program")) << peak;
  }
}

}  // namespace
}  // namespace tessera
