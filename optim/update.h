// Updates a part of a shard by an optimizer, for the engine. Owns no memory.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "tessera/device_type.h"
#include "tessera/dtype.h"
#include "tessera/optimizer.h"

namespace tessera {

namespace kernels {
struct UpdateGate;  // kernels/gate_math.h
struct StepBlock;   // kernels/step_block.h
}  // namespace kernels

// Consecutive elements whose parameters belong to one group.
struct UpdateRun {
  std::int64_t numel = 0;
  int group = 0;  // index into Optimizer::groups
  // Where moments in bf16 are not rounded by the element's place in the flat: by this key, and an index that
  // is `first` for the run's first element.
  struct Rounding {
    std::uint64_t key = 0;
    std::int64_t first = 0;
  };
  std::optional<Rounding> rounding = {};
};

// A contiguous part of a shard.
struct UpdateArguments {
  std::int64_t numel = 0;
  DType gradient_type = DType::fp32;
  const void* gradient = nullptr;  // the accumulated sum, of gradient_type; only read
  float* master = nullptr;         // fp32, updated in place
  // The first Optimizer::moments() are used, of Optimizer::moment_type, and updated in place.
  std::array<void*, 2> moments = {};
  DType parameter_type = DType::fp32;    // the type to which the updated master is cast
  void* parameter = nullptr;             // where the cast goes; null if an fp32 parameter is its own master
  int group = 0;                         // of all elements, unless `runs` are given
  std::span<const UpdateRun> runs = {};  // consecutive runs with their groups, `numel` elements in all
  double learning_rate = 0.0;            // the schedule's, before the group's factor
  std::int64_t step = 1;                 // number of updates with this one, from 1; skipped steps do not
                                         // count
  double gradient_scale = 1.0;           // clip factor / (loss scale · total weight)
  // Moments in bf16 are rounded by this key and the element's index in the flat, which is `first` for the
  // first element here. So the rounding does not depend on where they lie and how they are cut.
  std::uint64_t rounding_key = 0;
  std::int64_t first = 0;
  // If not null, it is read where the update runs: it replaces gradient_scale, and decides whether anything
  // is updated. Lies on `device`.
  const kernels::UpdateGate* gate = nullptr;
  // If not null, on CUDA: write_update() wrote it, and it lies on `device`. What it says of the learning rate
  // and the step replaces those here, where the update runs.
  const kernels::StepBlock* block = nullptr;
  int threads = 1;                      // any number gives the same result
  DeviceType device = DeviceType::cpu;  // where the memory of all pointers lies
  void* stream = nullptr;               // to enqueue the update on: a cudaStream_t, null on the CPU
};

// Unscales the gradient, updates master and moments, and casts to the parameter, in one elementwise pass. Any
// cut of a shard gives the same bits. Throws UsageError naming the argument for a null pointer, an unknown
// group, a step below 1, or runs whose elements do not add up to `numel`.
void update(const Optimizer& optimizer, const UpdateArguments& arguments);

// Writes a step's learning rate and number, with what follows from them for each parameter group, to
// block.update, in memory of the host. Returns false, and writes nothing, where the optimizer has more groups
// than a block has room for.
bool write_update(const Optimizer& optimizer, double learning_rate, std::int64_t step,
                  kernels::StepBlock& block);

}  // namespace tessera
