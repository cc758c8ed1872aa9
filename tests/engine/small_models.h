// Cells of a matrix by model, type and ranks, and the run that all of a cell's must equal.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "tests/engine/matrix.h"

namespace tessera::testing {

using SmallModel = std::tuple<Family, DType, int>;  // and so many ranks along the shard axis

inline auto small_models() {
  return ::testing::Combine(::testing::Values(Family::gpt2, Family::llama),
                            ::testing::Values(DType::fp32, DType::bf16), ::testing::Values(1, 2));
}

// Its place among them.
inline int part_of(const SmallModel& model) {
  const auto& [family, dtype, world] = model;
  return static_cast<int>(family) * 4 + (dtype == DType::fp32 ? 0 : 2) + world;
}

inline std::string name_of_small_model(const ::testing::TestParamInfo<SmallModel>& info) {
  const auto& [family, dtype, world] = info.param;
  return std::string(family == Family::llama ? "llama_" : "gpt2_") + std::string(name_of(dtype)) + "_world" +
         std::to_string(world);
}

// The same training with everything on the device, updated when decided, in the plainest order.
inline const RunResult& plain_run(RunConfig run) {
  run.offload = {};
  run.update = UpdateWhen::decided;
  run.stage = 0;
  run.prefetch = 0;
  run.strict_order = true;
  run.recompute = Recompute::none;
  run.state_over_replicas = run.parameters_over_replicas = false;
  return known_run(run);
}

}  // namespace tessera::testing
