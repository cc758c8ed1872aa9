// Which optimizer trains the model, with which options per parameter group. It never communicates and owns no
// state memory: the engine keeps master parameters and moments, and updates them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/dtype.h"
#include "tessera/optimizer_options.h"

namespace tessera {

// The names of all optimizers, in lower case, in the order of OptimizerOptions.
std::vector<std::string_view> optimizer_names();
// The options of the optimizer of that name, with their defaults. For an unknown name throws UsageError
// listing the known ones.
OptimizerOptions optimizer_options(std::string_view name);
std::string_view name_of(const OptimizerOptions& options);
// Values kept per element besides the master: 0 to 2.
int moments_of(const OptimizerOptions& options);

// The settings of a group of parameters (ParameterSpec::group) that differ from the options.
struct ParameterGroup {
  std::string name = "default";
  std::optional<double> weight_decay = {};  // replaces the options' weight_decay; 0: no decay
  double learning_rate_factor = 1.0;  // times the schedule's learning rate; 0 freezes the group's values
};

// One group, "default".
std::vector<ParameterGroup> default_groups();

struct Optimizer {
  OptimizerOptions options = AdamWOptions{};
  std::vector<ParameterGroup> groups = default_groups();
  // fp32 or bf16. In bf16 a moment is rounded at random to one of the two values around it, with the
  // probability that keeps its expectation. The random bits are a function of key, step and place. The update
  // computes in fp32.
  DType moment_type = DType::fp32;

  // Throws UsageError naming the optimizer, the field and its value.
  void check() const;
  // The optimizer's name, one of optimizer_names().
  std::string_view name() const;
  // Values of moment_type kept per element besides the master: moments_of(options).
  int moments() const;
  // The weight decay and the learning rate of a group, with the group's own settings applied. Throw
  // UsageError for a group that does not exist.
  double weight_decay(int group) const;
  double learning_rate(int group, double scheduled) const;
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
