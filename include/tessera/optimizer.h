// Which optimizer trains the model, with which options per parameter group, and the update of a run of a
// shard. It never communicates and owns no state memory: the engine keeps master parameters and moments, and
// calls update() with pointers to them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/device_type.h"
#include "tessera/dtype.h"
#include "tessera/optimizer_options.h"

namespace tessera {

namespace kernels {
struct UpdateGate;  // kernels/gate_math.h
}

// The names of all optimizers, in lower case and in the order of OptimizerOptions.
std::vector<std::string_view> optimizer_names();
// The options of the optimizer of that name, with their defaults. Throws UsageError naming those that there
// are.
OptimizerOptions optimizer_options(std::string_view name);
std::string_view name_of(const OptimizerOptions& options);
// All fields, in a fixed order. Their pointers are into `options`, and last until it holds another optimizer.
std::vector<OptimizerField> fields_of(OptimizerOptions& options);
// Values kept per parameter besides the master: 0 to 2.
int moments_of(const OptimizerOptions& options);

// What a group of parameters (ParameterSpec::group) changes.
struct ParameterGroup {
  std::string name = "default";
  std::optional<double> weight_decay = {};  // instead of the options' weight_decay; 0 switches it off
  double learning_rate_factor = 1.0;  // times the schedule's learning rate; 0 freezes the group's values
};

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
  // Of moments in bf16: what is rounded alike wherever and however it is cut is the element `first`, and
  // those behind it, of what has this key.
  std::uint64_t rounding_key = 0;
  std::int64_t first = 0;
  // Not null: read where the update runs, in place of gradient_scale, and says whether it changes anything.
  // Lies where all of the pointers lie.
  const kernels::UpdateGate* gate = nullptr;
  int threads = 1;                      // the result is the same for any
  DeviceType device = DeviceType::cpu;  // where all of the pointers lie
  void* stream = nullptr;               // to enqueue the update on: a cudaStream_t, null on the CPU
};

struct Optimizer {
  OptimizerOptions options = AdamWOptions{};
  std::vector<ParameterGroup> groups = {ParameterGroup{}};
  // fp32, or bf16: a moment is then rounded to one of the two values around it at random, with the
  // probability that keeps its expectation, by a function of key, step and place. The update computes in
  // fp32.
  DType moment_type = DType::fp32;

  // Throws UsageError naming the optimizer, the field and its value.
  void check() const;
  // Of optimizer_names().
  std::string_view name() const;
  // Values of moment_type kept per parameter besides the master: moments_of() the options.
  int moments() const;
  // What applies to a group, after its own override. Throws UsageError for a group that does not exist.
  double weight_decay(int group) const;
  double learning_rate(int group, double scheduled) const;

  // Unscales, steps master and moments, casts to the parameter: one pass, elementwise, so that any cut of a
  // shard into runs gives the same bits. Throws UsageError naming the argument for a null pointer, an unknown
  // group, a step below 1, or runs of more or fewer elements.
  void update(const UpdateArguments& arguments) const;
};

// Clipping by the global norm (Pascanu, Mikolov, Bengio, ICML 2013).
struct GradientClip {
  double max_norm = 0.0;  // 0 switches clipping off

  void check() const;
  // min(1, max_norm / (norm + 1e-6)): what all gradients are multiplied by, given the norm of the unscaled,
  // averaged gradient. The 1e-6 keeps the factor finite and is what PyTorch adds. Throws UsageError for a
  // norm that is negative or not finite: such a step is skipped, not clipped.
  double factor(double norm) const;
};

}  // namespace tessera
