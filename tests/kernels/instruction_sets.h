// The CPU kernels with one instruction set after the other.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>

#include "hwy/targets.h"

namespace tessera::kernels::testing {

// Calls function(name) once for every instruction set of this machine that the kernels are compiled for.
template <class Function>
void for_each_instruction_set(Function&& function) {
  int tried = 0;
  for (const std::int64_t target : {HWY_AVX3, HWY_AVX2, HWY_SSE4}) {
    hwy::SetSupportedTargetsForTest(0);
    if ((hwy::SupportedTargets() & target) == 0) continue;
    hwy::SetSupportedTargetsForTest(target);
    function(hwy::TargetName(target));
    ++tried;
  }
  hwy::SetSupportedTargetsForTest(0);
  EXPECT_GE(tried, 2);
}

}  // namespace tessera::kernels::testing
