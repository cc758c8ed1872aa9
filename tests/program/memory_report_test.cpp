#include "tessera/memory_report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/program/gpt2_sizes.h"

namespace tessera {
namespace {

struct Planned {
  std::vector<Program> programs;
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

TEST(MemoryReport, AllBuffersAtThePeakMakeUpThePeak) {
  for (const Recompute recompute : {Recompute::none, Recompute::full}) {
    const Planned made = planned(recompute);
    const auto all = largest_at_peak(made.programs, made.plan, Space::device, 1 << 20);
    std::int64_t sum = 0, before = INT64_MAX;
    for (const LiveBuffer& live : all) {
      const Buffer& buffer = made.programs[static_cast<std::size_t>(live.program)]
                                 .buffers[static_cast<std::size_t>(live.buffer)];
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
  const Buffer& buffer =
      made.programs[static_cast<std::size_t>(first.program)].buffers[static_cast<std::size_t>(first.buffer)];
  const std::string text = describe_largest(made.programs, made.plan, Space::device, 3);
  EXPECT_EQ(std::ranges::count(text, '\n'), 4);
  EXPECT_NE(text.find(buffer.name), std::string::npos);
  EXPECT_NE(text.find(std::to_string(buffer.bytes)), std::string::npos);
}

TEST(MemoryReport, ThePageHoldsEveryLifetimeAndNoForeignMarkup) {
  const Planned made = planned(Recompute::full);
  const std::string page =
      memory_page(made.programs, made.plan, Space::device, "a </script><b>title</b> \xff");
  EXPECT_EQ(page.find("__DATA__"), std::string::npos);
  EXPECT_EQ(page.find("</script><b>"), std::string::npos);
  EXPECT_EQ(page.find("http"), std::string::npos) << "the page loads nothing";
  const std::size_t begin = page.find("const data = ") + 13;
  const nlohmann::json data = nlohmann::json::parse(page.substr(begin, page.find(";\n", begin) - begin));
  EXPECT_EQ(data.at("arena"), made.plan.space(Space::device).arena_bytes);
  ASSERT_EQ(data.at("programs").size(), 2u);
  for (std::size_t index = 0; index < 2; ++index) {
    std::size_t expected = 0, seen = 0;
    for (const Buffer& buffer : made.programs[index].buffers)
      if (buffer.bytes > 0) expected += buffer.lifetimes.size();
    for (const nlohmann::json& buffer : data.at("programs")[index].at("buffers"))
      seen += buffer.at("lives").size();
    EXPECT_EQ(seen, expected);
  }
}

}  // namespace
}  // namespace tessera
