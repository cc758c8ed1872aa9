// The update of a part of a shard by an optimizer, as the engine asks for it. Owns no memory.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "tessera/device_type.h"
#include "tessera/dtype.h"
#include "tessera/optimizer.h"

namespace tessera {

namespace kernels {
struct UpdateGate;  // kernels/gate_math.h
}

// Consecutive elements whose parameters belong to one group.
struct UpdateRun {
  std::int64_t numel = 0;
  int group = 0;  // index into Optimizer::groups
};

// A contiguous part of a shard.
struct UpdateArguments {
  std::int64_t numel = 0;
  DType gradient_type = DType::fp32;
  const void* gradient = nullptr;  // the accumulated sum, of gradient_type; only read
  float* master = nullptr;         // fp32, updated in place
  // Of Optimizer::moment_type; the first Optimizer::moments() are used, updated in place.
  std::array<void*, 2> moments = {};
  DType parameter_type = DType::fp32;    // what the updated master is cast to,
  void* parameter = nullptr;             // and where to; null where an fp32 parameter is its own master
  int group = 0;                         // of all elements; or, where `runs` are given,
  std::span<const UpdateRun> runs = {};  // those of its runs, one behind the other: `numel` elements in all
  double learning_rate = 0.0;            // the schedule's, before the group's factor
  std::int64_t step = 1;                 // updates applied with this one, from 1: skipped steps do not count
  double gradient_scale = 1.0;           // clip factor / (loss scale · total weight)
  // Moments in bf16 are rounded by this key and the element's place, which is `first` for the first one here.
  // So they are rounded alike wherever they lie and however they are cut.
  std::uint64_t rounding_key = 0;
  std::int64_t first = 0;
  // Not null: read where the update runs, in place of gradient_scale, and says whether it changes anything.
  // Lies where all of the pointers lie.
  const kernels::UpdateGate* gate = nullptr;
  int threads = 1;                      // the result is the same for any
  DeviceType device = DeviceType::cpu;  // where all of the pointers lie
  void* stream = nullptr;               // to enqueue the update on: a cudaStream_t, null on the CPU
};

// Unscales, steps master and moments, casts to the parameter: one pass, elementwise, so that any cut of a
// shard into runs gives the same bits. Throws UsageError naming the argument for a null pointer, an unknown
// group, a step below 1, or runs of more or fewer elements.
void update(const Optimizer& optimizer, const UpdateArguments& arguments);

}  // namespace tessera
