// A trainer that splits its own layers over the tensor axis: residual MLPs, up by its outputs and down by its
// inputs. The ranks' terms are summed by the collectives of a lease. It computes on the host and brings what
// it exchanges to the engine's device.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tessera/engine.h"
#include "tessera/pipeline.h"
#include "tessera/program.h"
#include "tests/refusal.h"

namespace tessera::testing {

inline constexpr std::int64_t kMlpRows = 8, kMlpWidth = 12, kMlpHidden = 16;
inline constexpr std::int64_t kMlpNumel = kMlpRows * kMlpWidth;
inline constexpr UnitId kMlpUnits = 3;
inline constexpr int kMlpMicrobatches = 2;  // of a step, over all data ranks

inline constexpr double kMlpLearningRate = 0.005;

// Unit 1 sums and adds by rows, so each rank has a part of the gradient of its bias; the others sum all rows
// on every rank.
constexpr bool sums_by_rows(UnitId unit) { return unit == 1; }

// Whose last element is left as it was on this rank.
enum class Dropped { nothing, forward_sum, backward_sum, reduce_scatter, all_gather };

struct MlpRun {
  Mesh mesh = {};
  int stage = 0;
  Pipeline pipeline = {};
  bool splits_backward = false;
  Recompute recompute = Recompute::none;
  Offload offload = {};
  bool strict_order = false;
  double clip = 0;
  int steps = 3;
  Dropped dropped = Dropped::nothing;
  DeviceType device = DeviceType::cpu;
};

inline std::string to_string(const MlpRun& run) {
  return to_string(run.mesh) + ", stage " + std::to_string(run.stage) + ", recompute " +
         std::string(name_of(run.recompute)) + ", " + std::string(name_of(run.pipeline.schedule)) +
         (run.strict_order ? ", strict order" : "");
}

// The parameters of a unit, in order of declaration.
enum MlpParameter : ParameterId { kUp, kUpBias, kScale, kDown, kDownBias, kMlpParameters };

inline std::vector<UnitSpec> mlp_units() {
  std::vector<UnitSpec> units;
  for (UnitId unit = 0; unit < kMlpUnits; ++unit) {
    const std::string name = "mlp." + std::to_string(unit);
    const auto bias = sums_by_rows(unit) ? GradientOver::partial : GradientOver::copied;
    units.push_back(
        {.name = name,
         .parameters = {{.name = name + ".up", .shape = {kMlpHidden, kMlpWidth}, .cut = {.dim = 0}},
                        {.name = name + ".up.bias", .shape = {kMlpHidden}, .cut = {.dim = 0}},
                        {.name = name + ".scale", .shape = {}, .gradient = GradientOver::partial},
                        {.name = name + ".down", .shape = {kMlpWidth, kMlpHidden}, .cut = {.dim = 1}},
                        {.name = name + ".down.bias", .shape = {kMlpWidth}, .gradient = bias}}});
  }
  return units;
}

inline float mlp_initial(ParameterId parameter, std::int64_t index) {
  const float wave = std::sin(static_cast<float>(parameter * 37 + index * 11 + 1));
  return parameter % kMlpParameters == kScale ? 1.0f : 0.4f * wave;
}

inline void mlp_fill(ParameterId parameter, std::int64_t begin, std::span<float> values) {
  for (float& value : values) value = mlp_initial(parameter, begin++);
}

inline float mlp_input(std::int64_t microbatch, std::int64_t k) {
  return std::sin(static_cast<float>(microbatch * 101 + k * 3));
}
inline float mlp_target(std::int64_t microbatch, std::int64_t k) {
  return 0.5f * std::cos(static_cast<float>(microbatch * 7 + k * 5));
}

inline EngineOptions mlp_options(const MlpRun& run) {
  EngineOptions options;
  options.mesh = run.mesh;
  options.strategy.placements = Placements::of_stage(run.stage);
  options.strategy.pipeline = run.pipeline;
  options.strategy.recompute = run.recompute;
  options.strategy.offload = run.offload;
  options.splits_layers = true;
  options.overwrites_gradients = true;
  options.optimizer.options = SgdOptions{.momentum = 0.9};
  options.clip.max_norm = run.clip;
  options.parameter_norms = true;
  options.waits = {.deadline = std::chrono::seconds(60), .waiting = Waiting::block};
  options.debug = {.strict_order = run.strict_order, .poison = true, .delay_us = {}};
  options.device = run.device;
  ActivationSpec activations;
  activations.units.assign(kMlpUnits,
                           UnitActivations{.output_bytes = 4 * kMlpNumel,
                                           .saved_bytes = 4 * kMlpRows * kMlpHidden / run.mesh.tensor,
                                           .workspace_bytes = 3 * 4 * kMlpNumel,
                                           .reads_batch = false,
                                           .splits_backward = run.splits_backward});
  activations.units.back().output_bytes = 0;
  const Rounds rounds = Rounds::of(kMlpMicrobatches, run.mesh);
  options.programs = {{.kind = StepKind::train,
                       .microbatches = rounds.count,
                       .last_round_ranks = rounds.last_ranks,
                       .activations = activations}};
  return options;
}

// Row-major.
using Matrix = IdVector<float>;

inline Matrix transposed(const Matrix& a, std::int64_t columns) {
  const std::int64_t rows = std::ssize(a) / columns;
  Matrix result(a.size());
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j) result[j * rows + i] = a[i * columns + j];
  return result;
}

// [m, n] x [n, k]
inline Matrix times(const Matrix& a, const Matrix& b, std::int64_t n) {
  const std::int64_t m = std::ssize(a) / n, k = std::ssize(b) / n;
  Matrix product(static_cast<std::size_t>(m * k));
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j)
      for (std::int64_t l = 0; l < k; ++l) product[i * k + l] += a[i * n + j] * b[j * k + l];
  return product;
}
// [m, k] x [n, k] transposed
inline Matrix times_transposed(const Matrix& a, const Matrix& b, std::int64_t k) {
  return times(a, transposed(b, k), k);
}
// [m, n] transposed x [m, k]
inline Matrix transposed_times(const Matrix& a, const Matrix& b, std::int64_t m) {
  return times(transposed(a, std::ssize(a) / m), b, m);
}

inline void begin_mlp(Engine& engine) {
  engine.begin(StepKind::train, Rounds::of(kMlpMicrobatches, engine.options().mesh).count);
}

class MlpTrainer {
 public:
  MlpTrainer(Engine& engine, Dropped dropped = Dropped::nothing) : engine_(engine), dropped_(dropped) {}

  // All uses of a step, up to step().
  void uses() {
    begin_mlp(engine_);
    for (const Instruction& use : engine_.running().instructions) {
      if (use.op != Opcode::use) continue;
      UnitLease lease = engine_.use(use.unit, use.pass);
      if (is_of_backward(use.pass))
        backward(lease);
      else
        forward(lease);
      lease.end();
    }
  }
  StepResult train_step() {
    uses();
    return engine_.step({.learning_rate = kMlpLearningRate, .weight = 0.0});
  }

 private:
  const Mesh& mesh() const { return engine_.options().mesh; }

  Matrix from_device(const void* from, std::int64_t numel) {
    Matrix values(static_cast<std::size_t>(numel));
    engine_.transfer(values.data(), from, 4 * numel);
    return values;
  }
  void to_device(void* to, const Matrix& values) {
    engine_.transfer(to, values.data(), 4 * std::ssize(values));
  }
  Matrix parameter(const UnitLease& lease, MlpParameter which) {
    const TensorView view = lease.parameter(lease.unit() * kMlpParameters + which);
    return from_device(view.data, view.numel);
  }
  void add_gradient(const UnitLease& lease, MlpParameter which, Matrix gradient) {
    const ParameterId id = lease.unit() * kMlpParameters + which;
    const TensorView view = lease.gradient(id);
    ASSERT_EQ(view.numel, std::ssize(gradient));
    if (lease.gradient_beta(id) != 0) {
      const Matrix before = from_device(view.data, view.numel);
      for (std::size_t k = 0; k < gradient.size(); ++k) gradient[k] += before[k];
    }
    to_device(view.data, gradient);
  }

  // The rows that this rank adds to where a unit sums by rows.
  std::int64_t own_rows(const UnitLease& lease) const { return kMlpRows / lease.tensor().ranks(); }
  std::int64_t first_row(const UnitLease& lease) const { return own_rows(lease) * lease.tensor().rank(); }

  void drop(Dropped which, Matrix& of, float what_was_there) {
    if (which == dropped_) of.back() = what_was_there;
  }

  // The ranks' terms of [rows, width], summed, with finish(row, values) on each row.
  template <class Finish>
  Matrix sum(const UnitLease& lease, const Matrix& terms, Dropped all, const Finish& finish) {
    TensorGroup ranks = lease.tensor();
    auto* const whole = static_cast<float*>(lease.address(Role::workspace));
    to_device(whole, terms);
    if (!sums_by_rows(lease.unit())) {
      ranks.all_reduce(whole, kMlpNumel);
      Matrix result = from_device(whole, kMlpNumel);
      drop(all, result, terms.back());
      for (std::int64_t row = 0; row < kMlpRows; ++row) finish(row, &result[row * kMlpWidth]);
      return result;
    }
    const std::int64_t rows = own_rows(lease), numel = rows * kMlpWidth;
    float* const own = whole + kMlpNumel;
    float* const gathered = own + kMlpNumel;
    ranks.reduce_scatter(whole, DType::fp32, own, numel);
    Matrix part = from_device(own, numel);
    drop(Dropped::reduce_scatter, part, terms[(first_row(lease) + rows) * kMlpWidth - 1]);
    for (std::int64_t row = 0; row < rows; ++row) finish(first_row(lease) + row, &part[row * kMlpWidth]);
    to_device(own, part);
    ranks.all_gather(own, gathered, 4 * numel);
    Matrix result = from_device(gathered, kMlpNumel);
    drop(Dropped::all_gather, result, 0.0f);
    return result;
  }

  Matrix input(const UnitLease& lease) {
    if (lease.unit() > 0) return from_device(lease.address(Role::input), kMlpNumel);
    Matrix values(static_cast<int>(kMlpNumel));
    for (std::int64_t k = 0; k < kMlpNumel; ++k) values[k] = mlp_input(number(lease), k);
    return values;
  }
  std::int64_t number(const UnitLease& lease) const {
    return Rounds::of(kMlpMicrobatches, mesh())
        .number(mesh(), mesh().data_rank(engine_.rank()), lease.microbatch());
  }

  void forward(const UnitLease& lease) {
    const Matrix x = input(lease);
    Matrix hidden = times_transposed(x, parameter(lease, kUp), kMlpWidth);
    const Matrix up_bias = parameter(lease, kUpBias);
    for (std::size_t k = 0; k < hidden.size(); ++k)
      hidden[k] = std::tanh(hidden[k] + up_bias[k % up_bias.size()]);
    to_device(lease.value(UnitGraph::kSaved), hidden);
    if (lease.pass() == Pass::recompute) return;
    const float scale = parameter(lease, kScale)[0];
    for (float& value : hidden) value *= scale;
    const Matrix terms = times_transposed(hidden, parameter(lease, kDown), std::ssize(up_bias));
    const Matrix bias = parameter(lease, kDownBias);
    const Matrix y = sum(lease, terms, Dropped::forward_sum, [&](std::int64_t row, float* values) {
      for (std::int64_t k = 0; k < kMlpWidth; ++k) values[k] += bias[k] + x[row * kMlpWidth + k];
    });
    if (lease.unit() == kMlpUnits - 1)
      end_chain(lease, y);
    else
      to_device(lease.address(Role::output), y);
  }

  // The loss is half the sum of squares; its gradient waits for the backward.
  void end_chain(const UnitLease& lease, const Matrix& y) {
    LossTotal total{.sum = 0, .counted = kMlpRows};
    Matrix& gradient = ends_[lease.microbatch()] = y;
    for (std::int64_t k = 0; k < kMlpNumel; ++k) {
      gradient[k] -= mlp_target(number(lease), k);
      total.sum += 0.5 * gradient[k] * gradient[k];
    }
    void* const there = lease.address(Role::workspace);
    engine_.transfer(there, &total, sizeof total);
    engine_.add_loss(static_cast<const LossTotal*>(there));
  }

  // What weight gradients are made of, without parameters: the scaled hidden layer, the gradient of what goes
  // into the activation function, and that of the scale.
  struct Made {
    Matrix hidden, gradient, scale;
  };

  void backward(const UnitLease& lease) {
    const Matrix dy = lease.unit() == kMlpUnits - 1
                          ? ends_.at(lease.microbatch())
                          : from_device(lease.address(Role::output_gradient), kMlpNumel);
    Made& made = made_[{lease.unit(), lease.microbatch()}];
    if (lease.pass() == Pass::backward) make(lease, dy, made);
    if (lease.writes_gradients()) write_gradients(lease, dy, made);
    if (lease.pass() == Pass::weight_gradient || lease.unit() == 0) return;
    const Matrix up = parameter(lease, kUp);
    const Matrix terms = times(made.gradient, up, std::ssize(up) / kMlpWidth);
    const Matrix dx = sum(lease, terms, Dropped::backward_sum, [&](std::int64_t row, float* values) {
      for (std::int64_t k = 0; k < kMlpWidth; ++k) values[k] += dy[row * kMlpWidth + k];
    });
    to_device(lease.address(Role::input_gradient), dx);
  }

  void make(const UnitLease& lease, const Matrix& dy, Made& made) {
    const Matrix down = parameter(lease, kDown);
    const Matrix saved = from_device(lease.value(UnitGraph::kSaved), kMlpRows * std::ssize(down) / kMlpWidth);
    const float scale = parameter(lease, kScale)[0];
    made = {.hidden = saved, .gradient = times(dy, down, kMlpWidth), .scale = {0.0f}};
    for (std::int64_t k = 0; k < std::ssize(saved); ++k) {
      made.hidden[k] *= scale;
      made.scale[0] += made.gradient[k] * saved[k];
      made.gradient[k] *= scale * (1 - saved[k] * saved[k]);
    }
  }

  void write_gradients(const UnitLease& lease, const Matrix& dy, const Made& made) {
    const std::int64_t columns = std::ssize(made.gradient) / kMlpRows;
    Matrix down_bias(static_cast<int>(kMlpWidth)), up_bias(static_cast<int>(columns));
    const bool by_rows = sums_by_rows(lease.unit());
    const std::int64_t begin = by_rows ? first_row(lease) : 0, rows = by_rows ? own_rows(lease) : kMlpRows;
    for (std::int64_t k = begin * kMlpWidth; k < (begin + rows) * kMlpWidth; ++k)
      down_bias[k % kMlpWidth] += dy[k];
    for (std::int64_t k = 0; k < std::ssize(made.gradient); ++k) up_bias[k % columns] += made.gradient[k];
    add_gradient(lease, kUp, transposed_times(made.gradient, input(lease), kMlpRows));
    add_gradient(lease, kUpBias, up_bias);
    add_gradient(lease, kScale, made.scale);
    add_gradient(lease, kDown, transposed_times(dy, made.hidden, kMlpRows));
    add_gradient(lease, kDownBias, down_bias);
  }

  Engine& engine_;
  const Dropped dropped_;
  std::map<int, Matrix> ends_;
  std::map<std::pair<UnitId, int>, Made> made_;  // by unit and microbatch
};

// Masters and momenta of whole parameters. Collective.
inline std::vector<float> mlp_states(Engine& engine) {
  std::vector<float> all;
  for (const StateKind state : {StateKind::master, StateKind::moment1})
    for (ParameterId id = 0; id < engine.layout().parameters(); ++id) {
      Matrix values(static_cast<std::size_t>(numel_of(engine.layout().parameter(id).shape)));
      engine.read(id, state, 0, values);
      all.insert(all.end(), values.begin(), values.end());
    }
  return all;
}

struct MlpResult {
  std::vector<double> losses, norms;
  std::vector<std::vector<double>> parameter_norms;
  std::vector<float> states;
};

// On each rank.
inline MlpResult train_mlp(const Communicator& world, const MlpRun& run) {
  EngineOptions options = mlp_options(run);
  options.device_ordinal = run.device == DeviceType::cuda ? world.rank() : 0;
  Engine engine(world, mlp_units(), options);
  engine.initialize(mlp_fill);
  MlpTrainer trainer(engine, run.dropped);
  MlpResult result;
  for (int step = 0; step < run.steps; ++step) {
    const StepResult done = trainer.train_step();
    EXPECT_TRUE(done.applied);
    result.losses.push_back(done.loss);
    result.norms.push_back(done.gradient_norm);
    result.parameter_norms.push_back(done.parameter_norms);
  }
  result.states = mlp_states(engine);
  return result;
}

// Sums that tensor ranks cut differ by rounding.
inline constexpr double kMlpTolerance = 1e-5;

inline double furthest(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double most = 0;
  for (std::size_t k = 0; k < std::min(a.size(), b.size()); ++k)
    most = std::max(most, std::fabs(static_cast<double>(a[k]) - static_cast<double>(b[k])));
  return most;
}

inline void expect_near(const MlpResult& found, const MlpResult& expected) {
  EXPECT_LT(furthest(found.states, expected.states), kMlpTolerance);
  for (std::size_t step = 0; step < expected.losses.size(); ++step) {
    EXPECT_NEAR(found.losses[step], expected.losses[step], kMlpTolerance * expected.losses[step]);
    EXPECT_NEAR(found.norms[step], expected.norms[step], kMlpTolerance * expected.norms[step]);
    for (std::size_t id = 0; id < expected.parameter_norms[step].size(); ++id)
      EXPECT_NEAR(found.parameter_norms[step][id], expected.parameter_norms[step][id],
                  kMlpTolerance * expected.norms[step]);
  }
}

inline void expect_same_bits(const MlpResult& found, const MlpResult& expected) {
  EXPECT_EQ(found.states, expected.states);
  EXPECT_EQ(found.losses, expected.losses);
  EXPECT_EQ(found.norms, expected.norms);
  EXPECT_EQ(found.parameter_norms, expected.parameter_norms);
}

}  // namespace tessera::testing
