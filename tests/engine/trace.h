// What a traced step must be, on any device.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "tessera/engine.h"
#include "tessera/program.h"
#include "tessera/simulate.h"

namespace tessera::testing {

// Of the step of the program that was traced last: every instruction, on its lane behind the one before,
// behind what it waits for.
inline void expect_in_order(const Engine& engine, const Program& program) {
  const double slack_us = engine.options().device == DeviceType::cpu ? 0.0 : 2.0;  // events tell half of that
  const double clocks_us = slack_us == 0.0 ? 0.0 : 200.0;  // between the times of a GPU and its host
  const IdSpan<const TraceSpan> spans = engine.trace();
  ASSERT_EQ(spans.size(), program.instructions.size());
  const auto on_host = [&](Lane lane) { return lane == Lane::host || lane == Lane::io; };
  std::array<double, kLanes> lane_end{};
  lane_end.fill(-clocks_us);  // the step begins by the host's clock
  double last = 0, compute_us = 0;
  for (std::size_t id = 0; id < spans.size(); ++id) {
    const Instruction& instruction = program.instructions[id];
    const std::string text = describe(program, static_cast<InstructionId>(id));
    EXPECT_EQ(spans[id].instruction, static_cast<InstructionId>(id));
    EXPECT_EQ(spans[id].lane, instruction.lane) << text;
    EXPECT_LE(spans[id].start_us, spans[id].end_us) << text;
    double& before = lane_end[static_cast<std::size_t>(instruction.lane)];
    EXPECT_GE(spans[id].start_us, before - slack_us) << text << " runs before its lane is free";
    before = spans[id].end_us;
    for (const InstructionId wait : instruction.waits) {
      const TraceSpan& waited = spans[wait];
      const double slack = on_host(waited.lane) == on_host(instruction.lane) ? slack_us : clocks_us;
      EXPECT_GE(spans[id].start_us, waited.end_us - slack)
          << text << " runs before " << describe(program, wait) << " has ended";
    }
    last = std::max(last, spans[id].end_us);
    if (instruction.lane == Lane::compute) compute_us += spans[id].end_us - spans[id].start_us;
  }
  const StepTiming timing = engine.timing();
  EXPECT_GE(timing.total_us, last - clocks_us);
  EXPECT_GE(timing.exposed_us, 0);
  EXPECT_LE(compute_us + timing.exposed_us, timing.total_us + clocks_us) << "both are the compute lane's";
}

}  // namespace tessera::testing
