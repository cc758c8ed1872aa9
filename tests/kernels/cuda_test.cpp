// Every op on CUDA against the same op on the CPU, which the other tests hold to float64. One table of calls
// runs on both; each skips, saying why, where there is no GPU.
#include <cuda_runtime_api.h>

#include <gtest/gtest-spi.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <tuple>
#include <type_traits>

#include "kernels/column_sum.h"
#include "kernels/rotary_math.h"
#include "src/device/cuda_check.h"
#include "tessera/machine.h"
#include "tests/kernels/support.h"
#include "tests/program/sampled.h"

namespace tessera::kernels::testing {
namespace {

using device::check_cuda;

constexpr std::int64_t kGuardBytes = 256;  // poison before and behind every buffer

// A buffer of either device, poisoned with NaN around what it is given.
class Buffer {
 public:
  Buffer(DeviceType device, const void* contents, std::int64_t bytes, std::int64_t shift_bytes)
      : device_(device), begin_(kGuardBytes + shift_bytes), bytes_(bytes) {
    std::vector<unsigned char> all(static_cast<std::size_t>(2 * kGuardBytes + bytes + shift_bytes), 0xff);
    if (contents != nullptr) std::memcpy(all.data() + begin_, contents, static_cast<std::size_t>(bytes));
    all_bytes_ = all.size();
    if (device_ == DeviceType::cuda) {
      check_cuda(cudaMalloc(&memory_, all_bytes_), "cudaMalloc");
      check_cuda(cudaMemcpy(memory_, all.data(), all_bytes_, cudaMemcpyHostToDevice), "cudaMemcpy");
    } else {
      memory_ = ::operator new(all_bytes_, std::align_val_t(256));
      std::memcpy(memory_, all.data(), all_bytes_);
    }
  }
  ~Buffer() {
    if (device_ == DeviceType::cuda)
      device::ignore_cuda(cudaFree(memory_));
    else
      ::operator delete(memory_, std::align_val_t(256));
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* data() const { return static_cast<char*>(memory_) + begin_; }
  // The contents; checks that nothing was written around them.
  std::vector<unsigned char> take(const std::string& what) const {
    std::vector<unsigned char> all(all_bytes_);
    if (device_ == DeviceType::cuda)
      check_cuda(cudaMemcpy(all.data(), memory_, all_bytes_, cudaMemcpyDeviceToHost), "cudaMemcpy");
    else
      std::memcpy(all.data(), memory_, all_bytes_);
    const auto begin = all.begin() + begin_, end = begin + bytes_;
    const auto poisoned = [](unsigned char byte) { return byte == 0xff; };
    EXPECT_TRUE(std::all_of(all.begin(), begin, poisoned)) << what << ": written before a buffer";
    EXPECT_TRUE(std::all_of(end, all.end(), poisoned)) << what << ": written behind a buffer";
    return {begin, end};
  }

 private:
  DeviceType device_;
  std::int64_t begin_, bytes_;
  std::size_t all_bytes_ = 0;
  void* memory_ = nullptr;
};

// What one call needs, on one device: inputs, outputs that are compared, a context with exactly its
// workspace.
class Session {
 public:
  // `shift`: elements that tensors begin behind an aligned address.
  Session(DeviceType device, int threads, int shift) : device_(device), threads_(threads), shift_(shift) {
    if (device_ == DeviceType::cuda) check_cuda(cudaStreamCreate(&stream_), "cudaStreamCreate");
  }
  ~Session() {
    if (device_ == DeviceType::cuda) device::ignore_cuda(cudaStreamDestroy(stream_));
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  Target target() const { return {threads_, device_}; }
  ComputeContext context(std::int64_t workspace_bytes = 0) {
    void* workspace = add(nullptr, workspace_bytes, 0).data();
    return {.threads = threads_,
            .workspace = {.data = workspace, .bytes = workspace_bytes},
            .device = device_,
            .stream = stream_};
  }

  void* input(const Tensor& tensor) {
    return add(tensor.data(), tensor.numel() * bytes_of(tensor.type()), shift_ * bytes_of(tensor.type()))
        .data();
  }
  template <class T>
  const T* input(const std::vector<T>& values) {
    return static_cast<const T*>(
        add(values.data(), static_cast<std::int64_t>(values.size() * sizeof(T)), 0).data());
  }
  // Both read and compared.
  void* changed(const Tensor& tensor) {
    outputs_.push_back({tensor.type(), buffers_.size(), tensor.numel()});
    return input(tensor);
  }
  void* output(DType type, std::int64_t numel) { return changed(Tensor(type, numel)); }
  float* floats(std::int64_t numel) { return static_cast<float*>(output(DType::fp32, numel)); }
  // A result in a struct, which has been `start`, compared by what `values` makes of it.
  template <class T>
  T* result(std::function<Doubles(const T&)> values, const T& start = {}) {
    results_.push_back({buffers_.size(), [values](const unsigned char* bytes) {
                          T result;
                          std::memcpy(&result, bytes, sizeof(T));
                          return values(result);
                        }});
    return static_cast<T*>(add(&start, sizeof(T), 0).data());
  }

  // All outputs in order; waits for the device.
  std::vector<Doubles> take(const std::string& what) {
    if (device_ == DeviceType::cuda) check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    std::vector<std::vector<unsigned char>> contents;
    for (const auto& buffer : buffers_) contents.push_back(buffer->take(what));
    std::vector<Doubles> all;
    for (const Output& output : outputs_) {
      Tensor tensor(output.type, output.numel);
      std::copy(contents[output.buffer].begin(), contents[output.buffer].end(),
                static_cast<unsigned char*>(tensor.data()));
      all.push_back(tensor.doubles());
    }
    for (const Result& result : results_) all.push_back(result.values(contents[result.buffer].data()));
    return all;
  }

 private:
  struct Output {
    DType type;
    std::size_t buffer;
    std::int64_t numel;
  };
  struct Result {
    std::size_t buffer;
    std::function<Doubles(const unsigned char*)> values;
  };

  Buffer& add(const void* contents, std::int64_t bytes, std::int64_t shift_bytes) {
    return *buffers_.emplace_back(std::make_unique<Buffer>(device_, contents, bytes, shift_bytes));
  }

  DeviceType device_;
  int threads_, shift_;
  cudaStream_t stream_ = nullptr;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::vector<Output> outputs_;
  std::vector<Result> results_;
};

struct Case {
  std::string name;
  double tolerance;  // 0: the same bits, but for which NaN
  std::function<void(Session&, Random&)> run;
};

// --- The table ---------------------------------------------------------------------------------------------

using Cases = std::vector<Case>;

std::string label(std::string op, DType type, std::initializer_list<std::int64_t> extents) {
  op += " " + std::string(name_of(type));
  for (const std::int64_t extent : extents) op += " " + std::to_string(extent);
  return op;
}

void add_elementwise(Cases& cases, DType type, std::int64_t numel) {
  const auto add_case = [&](const std::string& op,
                            std::function<void(Session&, const Tensor&, const Tensor&)> call) {
    cases.push_back({label(op, type, {numel}), 0.0, [=](Session& s, Random& random) {
                       const Tensor x = random.tensor(type, numel, 4.0), y = random.tensor(type, numel);
                       call(s, x, y);
                     }});
  };
  for (const DType to : kAllTypes)
    add_case("cast to " + std::string(name_of(to)), [=](Session& s, const Tensor& x, const Tensor&) {
      kernels::cast(s.context(), numel, type, s.input(x), to, s.output(to, numel));
    });
  add_case("cast in place", [=](Session& s, const Tensor& x, const Tensor&) {
    void* data = s.changed(x);
    kernels::cast(s.context(), numel, type, data, type == DType::bf16 ? DType::fp16 : DType::bf16, data);
  });
  add_case("fill", [=](Session& s, const Tensor&, const Tensor&) {
    kernels::fill(s.context(), type, numel, -1.7f, s.output(type, numel));
  });
  add_case("copy", [=](Session& s, const Tensor& x, const Tensor&) {
    kernels::copy_bytes(s.context(), numel * bytes_of(type), s.input(x), s.output(type, numel));
  });
  add_case("copy of rows", [=](Session& s, const Tensor& x, const Tensor& y) {
    const std::int64_t rows = numel / 5, element = bytes_of(type);
    kernels::copy_rows(
        s.context(),
        {.rows = rows, .row_bytes = 3 * element, .input_stride = 5 * element, .output_stride = 4 * element},
        s.input(x), s.changed(y));
  });
  add_case("add", [=](Session& s, const Tensor& x, const Tensor& y) {
    kernels::add(s.context(), type, numel, s.input(x), s.input(y), s.output(type, numel));
  });
  for (const int count : {1, 3, 8, 11})
    for (const float beta : {0.0f, 1.0f})
      add_case("chain of " + std::to_string(count), [=](Session& s, const Tensor& x, const Tensor& y) {
        std::vector<const void*> contributions;
        for (int i = 0; i < count; ++i) contributions.push_back(s.input(i % 2 == 0 ? x : y));
        kernels::ordered_chain(s.context(), numel, type, contributions, beta,
                               static_cast<float*>(s.changed(Random(5).tensor(DType::fp32, numel))));
      });
  for (const int count : {1, 3, 4, 7, 8})
    add_case("balanced sum of " + std::to_string(count), [=](Session& s, const Tensor& x, const Tensor& y) {
      std::vector<const void*> contributions;
      for (int i = 0; i < count; ++i) contributions.push_back(s.input(i % 3 == 0 ? x : y));
      kernels::balanced_sum(s.context(), numel, type, contributions, s.floats(numel),
                            s.floats(std::max(1, kernels::balanced_scratch(count)) * numel));
    });
  if (type == DType::fp16) return;
  add_case("gelu forward", [=](Session& s, const Tensor& x, const Tensor&) {
    kernels::gelu_forward(s.context(), type, numel, s.input(x), s.output(type, numel));
  });
  add_case("gelu backward", [=](Session& s, const Tensor& x, const Tensor& y) {
    kernels::gelu_backward(s.context(), type, numel, s.input(x), s.input(y), s.output(type, numel));
  });
}

void add_gelu_bias(Cases& cases, DType type, std::int64_t rows, std::int64_t columns) {
  for (const float beta : {0.0f, 1.0f})
    cases.push_back({label("gelu backward and bias", type, {rows, columns}), 4 * tolerance_of(type),
                     [=](Session& s, Random& random) {
                       const Tensor bias = random.tensor(type, columns);
                       gelu_backward_bias(
                           s.context(gelu_backward_bias_workspace_bytes(rows, columns, s.target())),
                           {.rows = rows,
                            .columns = columns,
                            .type = type,
                            .input = s.input(random.tensor(type, rows * columns, 3.0)),
                            .output_gradient = s.input(random.tensor(type, rows * columns)),
                            .input_gradient = s.output(type, rows * columns),
                            .beta = beta,
                            .bias_gradient = beta == 0.0f ? s.output(type, columns) : s.changed(bias)});
                     }});
}

// What squares are added to: some are there.
SquareSum* square_result(Session& s) {
  SquareSum start;
  exact::add_magnitude(start.sum, 1e-30);
  return s.result<SquareSum>(
      [](const SquareSum& squares) {
        Doubles values;
        for (const std::uint64_t word : squares.sum.words)
          for (const int shift : {0, 32}) values.push_back(static_cast<double>(word >> shift & 0xffffffff));
        values.push_back(static_cast<double>(exact::first_nonfinite(squares)));
        return values;
      },
      start);
}

// The squares are those of the sums, which a last, longer sweep may have completed.
void add_chain_squares(Cases& cases, DType type, std::int64_t numel) {
  for (const int count : {2, 9})
    cases.push_back({label("chain and squares", type, {numel, count}), 0.0, [=](Session& s, Random& random) {
                       std::vector<const void*> contributions;
                       for (int i = 0; i < count; ++i)
                         contributions.push_back(s.input(random.tensor(type, numel)));
                       kernels::ordered_chain(s.context(), numel, type, contributions, 0.0f, s.floats(numel),
                                              {square_result(s), 640});
                     }});
}

void add_squares(Cases& cases, DType type, std::int64_t numel) {
  for (const std::int64_t bad : {std::int64_t{-1}, numel / 2})
    cases.push_back({label("sum of squares", type, {numel, bad}), 0.0, [=](Session& s, Random& random) {
                       Tensor x = random.tensor(type, numel, 4.0);
                       for (std::int64_t i = bad; i >= 0 && i < numel; i += (numel - i + 1) / 2)
                         x.set(i, std::numeric_limits<double>::infinity());
                       kernels::sum_of_squares(s.context(), numel, type, s.input(x), {square_result(s), 64});
                     }});
}

const OptimizerOptions kOptimizers[] = {AdamWOptions{},
                                        AdamOptions{},
                                        SgdOptions{},
                                        SgdOptions{.momentum = 0.9},
                                        SgdOptions{.momentum = 0.9, .nesterov = true},
                                        LionOptions{}};

int moments_of(const OptimizerOptions& options) {
  return std::visit([](const auto& own) { return rules::Rule<std::decay_t<decltype(own)>>::moments(own); },
                    options);
}

// The second is of squares.
Tensor random_moment(Random& random, DType type, std::int64_t numel, int k) {
  Tensor moment = random.tensor(type, numel, k == 0 ? 0.1 : 1.0);
  for (std::int64_t i = 0; k > 0 && i < numel; ++i) moment.set(i, moment.get(i) * moment.get(i));
  return moment;
}

// `first`: of moments in bf16, -1 of fp32.
void add_updates(Cases& cases, DType gradient_type, DType parameter_type, std::int64_t numel,
                 std::int64_t first = -1) {
  const DType moment_type = first < 0 ? DType::fp32 : DType::bf16;
  const MomentRounding rounding = {.key = 0x0123456789abcdef, .first = first};
  for (const int gate : {-1, 0, 1})  // none, closed, open
    for (const bool own : {false, true})
      for (const OptimizerOptions& options : kOptimizers) {
        if (own && parameter_type != DType::fp32) continue;  // the parameter is its own master
        const int moments = moments_of(options);
        cases.push_back(
            {label("update", gradient_type,
                   {static_cast<std::int64_t>(options.index()), moments, numel, gate, own, first}) +
                 std::string(name_of(parameter_type)),
             0.0, [=](Session& s, Random& random) {
               OptimizerArguments arguments{
                   .numel = numel,
                   .gradient_type = gradient_type,
                   .gradient = s.input(random.tensor(gradient_type, numel)),
                   .master = static_cast<float*>(s.changed(random.tensor(DType::fp32, numel))),
                   .moment_count = moments,
                   .moment_type = moment_type,
                   .rounding = rounding,
                   .parameter_type = parameter_type,
                   .coefficients =
                       rules::coefficients_of(options, {.learning_rate = 1e-2, .weight_decay = 0.1}),
                   .gradient_scale = 0.37f};
               for (int k = 0; k < moments; ++k)
                 arguments.moments[k] = s.changed(random_moment(random, moment_type, numel, k));
               arguments.parameter = own ? nullptr : s.output(parameter_type, numel);
               const UpdateGate* gates =
                   s.input(std::vector<UpdateGate>{{.gradient_scale = 0.7, .apply = gate}});
               arguments.gate = gate < 0 ? nullptr : gates;
               optimizer_update(s.context(), arguments);
             }});
      }
}

// Runs of whole vectors, one launch, and others.
void add_update_runs(Cases& cases, DType gradient_type, DType parameter_type, DType moment_type) {
  for (const OptimizerOptions& options : kOptimizers)
    for (const auto& [count, numel] : {std::pair{1, 1000}, {2, 64}, {16, 256}, {5, 35}})
      cases.push_back({label("update runs", gradient_type,
                             {static_cast<std::int64_t>(options.index()), moments_of(options), count, numel,
                              bytes_of(moment_type)}) +
                           std::string(name_of(parameter_type)),
                       0.0, [=, count = count, length = numel](Session& s, Random& random) {
                         std::vector<CoefficientRun> runs;
                         std::int64_t all = 0;
                         for (int r = 0; r < count; ++r) {
                           runs.push_back({.numel = length * (r % 3 + 1),
                                           .coefficients = rules::coefficients_of(
                                               options, {.learning_rate = 1e-3 * (r + 1),
                                                         .weight_decay = 0.01 * (r % 5)})});
                           all += runs.back().numel;
                         }
                         OptimizerArguments arguments{
                             .numel = all,
                             .gradient_type = gradient_type,
                             .gradient = s.input(random.tensor(gradient_type, all)),
                             .master = static_cast<float*>(s.changed(random.tensor(DType::fp32, all))),
                             .moment_count = moments_of(options),
                             .moment_type = moment_type,
                             .rounding = {.key = 11, .first = 64},
                             .parameter_type = parameter_type,
                             .parameter = s.output(parameter_type, all),
                             .coefficients = runs[0].coefficients,
                             .runs = runs,
                             .gradient_scale = 0.37f};
                         for (int k = 0; k < arguments.moment_count; ++k)
                           arguments.moments[k] = s.changed(random_moment(random, moment_type, all, k));
                         optimizer_update(s.context(), arguments);
                       }});
}

void add_losses(Cases& cases) {
  cases.push_back({"losses", 0.0, [](Session& s, Random& random) {
                     auto* const sum = s.result<LossSum>([](const LossSum& of) {
                       return Doubles{exact::value_of(of.loss), static_cast<double>(of.counted)};
                     });
                     for (const double size : {1e-9, 1e12, 1e-300, 1e200, 1.0, 1e12, 1e200}) {
                       const std::vector<LossTotal> total = {{size * random.normal(), 7}};
                       add_loss(s.context(), s.input(total), sum);
                     }
                   }});
}

void add_gates(Cases& cases) {
  const auto values_of = [](const UpdateGate& gate) {
    return Doubles{gate.gradient_scale, static_cast<double>(gate.apply)};
  };
  constexpr int kSquares = 8;
  for (const int ranks : {1, 5, 40})
    for (const int bad : {-1, 0, ranks - 1})
      cases.push_back({label("gate", DType::fp32, {ranks, bad}), 0.0, [=](Session& s, Random& random) {
                         const std::int64_t numel = kSquares + sizeof(SquareSum) / sizeof(double) + 1;
                         std::vector<double> scalars(static_cast<std::size_t>(ranks * numel));
                         for (double& value : scalars) value = std::fabs(random.normal());
                         for (int rank = 0; rank < ranks; ++rank) {
                           double* const own = &scalars[static_cast<std::size_t>(rank * numel)];
                           own[1] = bits_as<double>(std::int64_t{rank} - 3 + (std::int64_t{1} << 60));
                           own[2] = 0.0;
                           SquareSum squares;
                           for (int word = 0; word < 9; ++word)
                             squares.sum.words[word] = ~std::uint64_t{0} - static_cast<std::uint64_t>(rank);
                           if (rank == bad) exact::note_nonfinite(squares, 12345);
                           std::memcpy(own + kSquares, &squares, sizeof(squares));
                         }
                         set_gate(s.context(),
                                  {.scalars = s.input(scalars),
                                   .ranks = ranks,
                                   .numel = numel,
                                   .weight = 0,
                                   .counted = 1,
                                   .abandoned = 2,
                                   .loss_scale = 3,
                                   .agreed = bad == 0 ? 1U << 5 : 0,
                                   .squares = kSquares,
                                   .max_norm = 0.5},
                                  s.result<UpdateGate>(values_of));
                       }});
}

constexpr Dropout kDropout = {
    .threshold = 13107, .key = 0x0123456789abcdef, .matrix = 5, .first_sequence = 9};

void add_dropout(Cases& cases, const DropoutShape& shape) {
  for (const Dropout& dropout : {Dropout{}, kDropout})
    cases.push_back({label("dropout", shape.type, {shape.channels, dropout.threshold, shape.first_row}), 0.0,
                     [=](Session& s, Random& random) {
                       const std::int64_t numel = shape.rows_or_all() * shape.channels;
                       void* in_place = s.changed(random.tensor(shape.type, numel));
                       kernels::dropout(s.context(), shape, dropout, in_place, s.output(shape.type, numel));
                       kernels::dropout(s.context(), shape, dropout, in_place, in_place);
                     }});
}

void add_swiglu(Cases& cases, const SwigluShape& shape) {
  cases.push_back(
      {label("swiglu", shape.type, {shape.rows, shape.hidden}), 0.0, [=](Session& s, Random& random) {
         const std::int64_t numel = shape.rows * shape.hidden;
         void* x = s.changed(random.tensor(shape.type, 2 * numel, 3.0));  // its gradient takes its place
         const void* dy = s.input(random.tensor(shape.type, numel));
         swiglu_forward(s.context(), shape, x, s.output(shape.type, numel));
         swiglu_backward(s.context(), shape, x, dy, x);
       }});
}

void add_rotary(Cases& cases, const RotaryShape& shape) {
  for (const bool back : {false, true})
    cases.push_back(
        {label(back ? "rotary backward" : "rotary", shape.type, {shape.heads, shape.head_channels}), 0.0,
         [=](Session& s, Random& random) {
           const std::vector<float> frequencies = rotary_frequencies(shape.head_channels, 10000.0);
           void* x = s.changed(random.tensor(shape.type, shape.batch * shape.sequence * shape.row_numel));
           const ComputeContext context = s.context(rotary_workspace_bytes(shape));
           (back ? rotary_backward : rotary_forward)(context, shape, frequencies.data(), x);
         }});
}

void add_layer_norm(Cases& cases, const LayerNormShape& shape) {
  const std::int64_t numel = shape.rows * shape.channels, channels = shape.channels;
  const double tolerance = tolerance_of(shape.type);
  for (const bool fused : {false, true}) {
    cases.push_back({label("layer norm forward", shape.type, {shape.rows, channels, fused}), tolerance,
                     [=](Session& s, Random& random) {
                       void* residual =
                           fused ? s.changed(random.tensor(shape.type, numel)) : nullptr;  // overwritten
                       layer_norm_forward(s.context(), shape,
                                          {.input = s.input(random.tensor(shape.type, numel, 2.0, 0.5)),
                                           .residual = residual,
                                           .sum = residual,
                                           .gain = s.input(random.tensor(shape.type, channels)),
                                           .bias = s.input(random.tensor(shape.type, channels)),
                                           .output = s.output(shape.type, numel),
                                           .mean = s.floats(shape.rows),
                                           .rstd = s.floats(shape.rows)});
                     }});
    for (const float beta : {0.0f, 1.0f}) {
      if (!fused)
        cases.push_back(
            {label("layer norm parameter gradients", shape.type, {shape.rows, channels}), 4 * tolerance,
             [=](Session& s, Random& random) {
               Tensor rstd(DType::fp32, shape.rows);
               for (std::int64_t i = 0; i < shape.rows; ++i) rstd.set(i, 0.5 + std::abs(random.normal()));
               const Tensor dgain = random.tensor(shape.type, channels),
                            dbias = random.tensor(shape.type, channels);
               layer_norm_backward(
                   s.context(layer_norm_backward_workspace_bytes(shape, s.target())), shape,
                   {.input = s.input(random.tensor(shape.type, numel)),
                    .mean = static_cast<float*>(s.input(random.tensor(DType::fp32, shape.rows, 0.1))),
                    .rstd = static_cast<float*>(s.input(rstd)),
                    .output_gradient = s.input(random.tensor(shape.type, numel)),
                    .gain_gradient = beta == 0.0f ? s.output(shape.type, channels) : s.changed(dgain),
                    .bias_gradient = beta == 0.0f ? s.output(shape.type, channels) : s.changed(dbias),
                    .beta = beta});
             }});
      cases.push_back(
          {label("layer norm backward", shape.type, {shape.rows, channels, fused}), 4 * tolerance,
           [=](Session& s, Random& random) {
             Tensor rstd(DType::fp32, shape.rows);
             for (std::int64_t i = 0; i < shape.rows; ++i) rstd.set(i, 0.5 + std::abs(random.normal()));
             const Tensor dgain = random.tensor(shape.type, channels),
                          dbias = random.tensor(shape.type, channels);
             void* residual = fused ? s.changed(random.tensor(shape.type, numel)) : nullptr;  // overwritten
             layer_norm_backward(
                 s.context(layer_norm_backward_workspace_bytes(shape, s.target())), shape,
                 {.input = s.input(random.tensor(shape.type, numel)),
                  .mean = static_cast<float*>(s.input(random.tensor(DType::fp32, shape.rows, 0.1))),
                  .rstd = static_cast<float*>(s.input(rstd)),
                  .gain = s.input(random.tensor(shape.type, channels)),
                  .output_gradient = s.input(random.tensor(shape.type, numel)),
                  .residual_gradient = residual,
                  .input_gradient = fused ? residual : s.output(shape.type, numel),
                  .gain_gradient = beta == 0.0f ? s.output(shape.type, channels) : s.changed(dgain),
                  .bias_gradient = beta == 0.0f ? s.output(shape.type, channels) : s.changed(dbias),
                  .beta = beta});
           }});
    }
  }
}

void add_rms_norm(Cases& cases, const RmsNormShape& shape) {
  const std::int64_t numel = shape.rows * shape.channels, channels = shape.channels;
  const double tolerance = tolerance_of(shape.type);
  cases.push_back({label("rms norm gain gradient", shape.type, {shape.rows, channels}), 4 * tolerance,
                   [=](Session& s, Random& random) {
                     Tensor rstd(DType::fp32, shape.rows);
                     for (std::int64_t i = 0; i < shape.rows; ++i)
                       rstd.set(i, 0.5 + std::abs(random.normal()));
                     rms_norm_backward(s.context(rms_norm_backward_workspace_bytes(shape, s.target())), shape,
                                       {.input = s.input(random.tensor(shape.type, numel)),
                                        .rstd = static_cast<float*>(s.input(rstd)),
                                        .output_gradient = s.input(random.tensor(shape.type, numel)),
                                        .gain_gradient = s.output(shape.type, channels)});
                   }});
  for (const bool fused : {false, true}) {
    cases.push_back({label("rms norm forward", shape.type, {shape.rows, channels, fused}), tolerance,
                     [=](Session& s, Random& random) {
                       void* residual =
                           fused ? s.changed(random.tensor(shape.type, numel)) : nullptr;  // overwritten
                       rms_norm_forward(s.context(), shape,
                                        {.input = s.input(random.tensor(shape.type, numel, 2.0)),
                                         .residual = residual,
                                         .sum = residual,
                                         .gain = s.input(random.tensor(shape.type, channels)),
                                         .output = s.output(shape.type, numel),
                                         .rstd = s.floats(shape.rows)});
                     }});
    for (const bool gain : {false, true})
      cases.push_back(
          {label("rms norm backward", shape.type, {shape.rows, channels, fused}), 4 * tolerance,
           [=](Session& s, Random& random) {
             Tensor rstd(DType::fp32, shape.rows);
             for (std::int64_t i = 0; i < shape.rows; ++i) rstd.set(i, 0.5 + std::abs(random.normal()));
             void* residual = fused ? s.changed(random.tensor(shape.type, numel)) : nullptr;  // overwritten
             rms_norm_backward(s.context(rms_norm_backward_workspace_bytes(shape, s.target())), shape,
                               {.input = s.input(random.tensor(shape.type, numel)),
                                .rstd = static_cast<float*>(s.input(rstd)),
                                .gain = s.input(random.tensor(shape.type, channels)),
                                .output_gradient = s.input(random.tensor(shape.type, numel)),
                                .residual_gradient = residual,
                                .input_gradient = fused ? residual : s.output(shape.type, numel),
                                .gain_gradient = gain ? s.output(shape.type, channels) : nullptr});
           }});
  }
}

void add_sums(Cases& cases, DType type, std::int64_t channels) {
  const SumShape shape = {.rows = 19, .channels = channels, .type = type};
  for (const bool biased : {false, true})
    cases.push_back({label("finish sum", type, {channels, biased}), 0.0, [=](Session& s, Random& random) {
                       const Tensor bias = random.tensor(type, channels);
                       const Tensor sum = random.tensor(DType::fp32, 19 * channels);
                       finish_sum(s.context(), shape, static_cast<const float*>(s.input(sum)),
                                  biased ? s.input(bias) : nullptr, s.output(type, sum.numel()));
                       if (type != DType::fp32) return;
                       void* in_place = s.changed(sum);
                       finish_sum(s.context(), shape, static_cast<const float*>(in_place),
                                  biased ? s.input(bias) : nullptr, in_place);
                     }});
  for (const float beta : {0.0f, 1.0f})
    cases.push_back({label("add sum", type, {channels, beta != 0.0f}), 0.0, [=](Session& s, Random& random) {
                       add_sum(s.context(), shape,
                               static_cast<const float*>(s.input(random.tensor(DType::fp32, 19 * channels))),
                               beta, s.changed(random.tensor(type, 19 * channels)));
                     }});
  cases.push_back({label("add positions", type, {channels}), 0.0, [=](Session& s, Random& random) {
                     add_positions(
                         s.context(),
                         {.first_row = 5, .rows = 19, .sequence = 7, .channels = channels, .type = type},
                         static_cast<const float*>(s.input(random.tensor(DType::fp32, 19 * channels))),
                         s.input(random.tensor(type, 7 * channels)), s.output(type, 19 * channels));
                   }});
}

void add_embedding(Cases& cases, const EmbeddingShape& shape) {
  const std::int64_t rows = shape.batch * shape.sequence, channels = shape.channels;
  const std::int64_t table = shape.table_rows_or_all() * channels;
  if (shape.positions == 0)
    cases.push_back({label("embedding forward partial", shape.type, {rows, channels, shape.first_token}), 0.0,
                     [=](Session& s, Random& random) {
                       embedding_forward_partial(
                           s.context(), shape, s.input(random.tokens(rows, shape.vocabulary)),
                           s.input(random.tensor(shape.type, table)), s.floats(rows * channels));
                     }});
  cases.push_back(
      {label("embedding forward", shape.type, {rows, channels, shape.positions, shape.first_token}), 0.0,
       [=](Session& s, Random& random) {
         const bool placed = shape.positions > 0;
         const Tensor positions = random.tensor(shape.type, shape.positions * channels);
         embedding_forward(s.context(), shape, s.input(random.tokens(rows, shape.vocabulary)),
                           s.input(random.tensor(shape.type, table)), placed ? s.input(positions) : nullptr,
                           s.output(shape.type, rows * channels));
       }});
  for (const float beta : {0.0f, 1.0f})
    cases.push_back(
        {label("embedding backward", shape.type, {rows, channels, shape.positions, shape.first_token}), 0.0,
         [=](Session& s, Random& random) {
           const Tensor tokens = random.tensor(shape.type, table);
           const Tensor positions = random.tensor(shape.type, shape.positions * channels);
           embedding_backward(
               s.context(embedding_backward_workspace_bytes(shape, s.target())), shape,
               {.tokens = s.input(random.tokens(rows, shape.vocabulary)),
                .output_gradient = s.input(random.tensor(shape.type, rows * channels)),
                .token_gradient = beta == 0.0f ? s.output(shape.type, tokens.numel()) : s.changed(tokens),
                .token_beta = beta,
                .position_gradient = shape.positions > 0 ? s.changed(positions) : nullptr,
                .position_beta = beta});
         }});
}

void add_linear(Cases& cases, const LinearShape& shape) {
  const std::int64_t x = shape.rows * shape.in, y = shape.rows * shape.out, w = shape.in * shape.out;
  cases.push_back({label("linear", shape.type, {shape.rows, shape.in, shape.out}),
                   4 * tolerance_of(shape.type), [=](Session& s, Random& random) {
                     const ComputeContext context = s.context(linear_workspace_bytes(shape, s.target()));
                     const void* input = s.input(random.tensor(shape.type, x));
                     const void* weight = s.input(random.tensor(shape.type, w));
                     const void* bias = s.input(random.tensor(shape.type, shape.out));
                     const void* gradient = s.input(random.tensor(shape.type, y));
                     linear_forward(context, shape, input, weight, nullptr, s.output(shape.type, y));
                     linear_gelu_forward(context, shape, input, weight, bias, s.output(shape.type, y),
                                         s.output(shape.type, y));
                     linear_backward_input(context, shape, gradient, weight, 0.0f, s.output(shape.type, x));
                     linear_backward_weight(context, shape, gradient, input, 1.0f,
                                            s.changed(random.tensor(shape.type, w)));
                     linear_backward_bias(context, shape, gradient, 1.0f,
                                          s.changed(random.tensor(shape.type, shape.out)));
                     const ComputeContext partial =
                         s.context(linear_partial_workspace_bytes(shape, s.target()));
                     linear_forward_partial(partial, shape, input, weight, s.floats(y));
                     linear_backward_input_partial(partial, shape, gradient, weight, s.floats(x));
                     float* sum = s.floats(shape.out * shape.in);
                     for (const float beta : {0.0f, 1.0f})
                       linear_backward_weight_partial(partial, shape, gradient, input, beta, sum);
                   }});
}

void add_cross_entropy(Cases& cases, const CrossEntropyShape& shape) {
  const auto total = [](const CrossEntropyLoss& loss) {
    return Doubles{loss.sum, static_cast<double>(loss.counted)};
  };
  const auto targets_of = [=](Random& random) {
    std::vector<std::int32_t> targets = random.tokens(shape.rows, shape.vocabulary);
    targets[0] = -1;
    return targets;
  };
  const std::int64_t x = shape.rows * shape.channels, w = shape.vocabulary * shape.channels;
  const std::string name = label("cross entropy", shape.type, {shape.rows, shape.channels, shape.vocabulary});
  cases.push_back({name + " forward", 4 * tolerance_of(shape.type), [=](Session& s, Random& random) {
                     cross_entropy_forward(s.context(cross_entropy_workspace_bytes(shape, s.target())), shape,
                                           s.input(random.tensor(shape.type, x)),
                                           s.input(random.tensor(shape.type, w, 0.2)),
                                           s.input(targets_of(random)), s.floats(shape.rows),
                                           s.result<CrossEntropyLoss>(total));
                   }});
  cases.push_back(
      {name + " both", 4 * tolerance_of(shape.type), [=](Session& s, Random& random) {
         void* input = s.changed(random.tensor(shape.type, x));  // its gradient takes its place
         cross_entropy_forward_backward(
             s.context(cross_entropy_workspace_bytes(shape, s.target())), shape,
             {.input = input,
              .weight = s.input(random.tensor(shape.type, w, 0.2)),
              .targets = s.input(targets_of(random)),
              .scale = 3.0f,
              .losses = s.floats(shape.rows),
              .total = s.result<CrossEntropyLoss>(total),
              .input_gradient = input,
              .weight_gradient = s.output(shape.fp32_weight_gradient ? DType::fp32 : shape.type, w)});
       }});
}

Doubles values_of_total(const LossTotal& total) { return {total.sum, static_cast<double>(total.counted)}; }

// A head of one chunk whose vocabulary is split over ranks: of each, losses and, with gradients, the input's
// partial gradient and the weight's.
void run_split_head(Session& s, const CrossEntropyShape& head, int ranks, bool with_gradients,
                    const Tensor& x, const Tensor& w, const std::vector<std::int32_t>& target_values) {
  const DeviceType device = s.target().device;
  const std::int32_t* const targets = s.input(target_values);
  const void* const input = s.input(x);
  SoftmaxShape shape = {.rows = head.rows,
                        .columns = (head.vocabulary + ranks - 1) / ranks,
                        .vocabulary = head.vocabulary,
                        .ranks = ranks,
                        .type = head.type};
  auto* const statistics =
      static_cast<SoftmaxStatistics*>(s.input(Tensor(DType::fp32, ranks * head.rows * 3)));
  std::vector<float*> logits;
  std::vector<void*> weights;
  const auto for_each_rank = [&](const std::function<void(std::size_t)>& function) {
    for (int rank = 0; rank < ranks; ++rank) {
      shape.first_column = rank * shape.columns;
      function(static_cast<std::size_t>(rank));
    }
  };
  for_each_rank([&](std::size_t rank) {
    Doubles own(static_cast<std::size_t>(shape.columns * head.channels));
    for (std::int64_t i = 0; i < shape.counted_columns() * head.channels; ++i)
      own[static_cast<std::size_t>(i)] = w.get(shape.first_column * head.channels + i);
    weights.push_back(s.input(Tensor(head.type, own)));
    logits.push_back(static_cast<float*>(s.input(Tensor(DType::fp32, logits_bytes(shape, device) / 4))));
    const LinearShape layer = logits_layer(shape, head.channels, device);
    linear_forward_partial(s.context(linear_partial_workspace_bytes(layer, s.target())), layer, input,
                           weights[rank], logits[rank]);
    softmax_statistics(s.context(), shape, logits[rank], targets,
                       statistics + static_cast<std::int64_t>(rank) * head.rows);
  });
  for_each_rank([&](std::size_t rank) {
    float* const losses = s.floats(head.rows);
    if (with_gradients) {
      softmax_gradients(s.context(), shape,
                        {.statistics = statistics,
                         .targets = targets,
                         .scale = 3.0f,
                         .logits = logits[rank],
                         .losses = losses});
      const LinearShape layer = gradients_layer(shape, head.channels, device);
      linear_backward_input_partial(s.context(linear_partial_workspace_bytes(layer, s.target())), layer,
                                    logits[rank], weights[rank], s.floats(head.rows * head.channels));
      linear_backward_weight(s.context(linear_workspace_bytes(layer, s.target())), layer, logits[rank], input,
                             0.0f, s.output(head.type, shape.columns * head.channels));
    } else {
      softmax_losses(s.context(), shape, statistics, targets, losses);
    }
    total_loss(s.context(), head.rows, targets, losses, s.result<LossTotal>(values_of_total));
  });
}

std::vector<std::int32_t> some_targets(Random& random, const CrossEntropyShape& head) {
  std::vector<std::int32_t> targets = random.tokens(head.rows, head.vocabulary);
  targets[0] = -1;
  return targets;
}

void add_softmax(Cases& cases, const CrossEntropyShape& head, int ranks) {
  for (const bool with_gradients : {false, true})
    cases.push_back(
        {label("softmax", head.type, {head.rows, head.channels, head.vocabulary, ranks, with_gradients}),
         4 * tolerance_of(head.type), [=](Session& s, Random& random) {
           const Tensor x = random.tensor(head.type, head.rows * head.channels);
           const Tensor w = random.tensor(head.type, head.vocabulary * head.channels, 0.2);
           run_split_head(s, head, ranks, with_gradients, x, w, some_targets(random, head));
         }});
}

struct AttentionCase {
  AttentionShape shape;
  // All scores are so low that e^-score has no float: of the zeros that fill up a tile a kernel that does not
  // mask them makes infinity.
  bool lowered = false;
};

std::string name_of(const AttentionCase& one) {
  const AttentionShape& shape = one.shape;
  return label(one.lowered ? "attention of low scores" : "attention", shape.type,
               {shape.sequence, shape.heads, shape.kv_heads, shape.head_channels(), shape.dropout.threshold});
}

Tensor random_qkv(Random& random, const AttentionCase& one) {
  const AttentionShape& shape = one.shape;
  const std::int64_t row_numel = shape.qkv_channels();
  Tensor qkv = random.tensor(shape.type, shape.batch * shape.sequence * row_numel);
  if (!one.lowered) return qkv;
  for (std::int64_t i = 0; i < qkv.numel(); ++i) {
    const std::int64_t channel = i % row_numel;
    if (channel < shape.channels)
      qkv.set(i, 3.9 + 0.25 * qkv.get(i));
    else if (channel < (row_numel + shape.channels) / 2)
      qkv.set(i, -3.9 + 0.25 * qkv.get(i));
  }
  return qkv;
}

// What backward starts from. Forward runs on the CPU, so that both backends begin from the same.
struct AttentionTensors {
  Tensor qkv, output, log_sum_exp, output_gradient;

  AttentionTensors(Random& random, const AttentionCase& one)
      : qkv(random_qkv(random, one)),
        output(one.shape.type, one.shape.batch * one.shape.sequence * one.shape.channels),
        log_sum_exp(DType::fp32, one.shape.batch * one.shape.heads * one.shape.sequence),
        output_gradient(random.tensor(one.shape.type, output.numel())) {
    attention_forward(TestContext(1, attention_forward_workspace_bytes(one.shape, 1)), one.shape, qkv.data(),
                      output.data(), log_sum_exp.floats());
  }
};

// In bf16 who multiplies on tensor cores rounds the weights and their gradients.
double backward_tolerance(DType type) { return type == DType::fp32 ? 4 * tolerance_of(type) : 0.3; }

void add_attention(Cases& cases, const AttentionCase& one) {
  const AttentionShape& shape = one.shape;
  cases.push_back({name_of(one) + " forward", 4 * tolerance_of(shape.type), [=](Session& s, Random& random) {
                     attention_forward(s.context(attention_forward_workspace_bytes(shape, s.target())), shape,
                                       s.input(random_qkv(random, one)),
                                       s.output(shape.type, shape.batch * shape.sequence * shape.channels),
                                       s.floats(shape.batch * shape.heads * shape.sequence));
                   }});
  cases.push_back(
      {name_of(one) + " backward", backward_tolerance(shape.type), [=](Session& s, Random& random) {
         const AttentionTensors from(random, one);
         attention_backward(s.context(attention_backward_workspace_bytes(shape, s.target())), shape,
                            {.qkv = s.input(from.qkv),
                             .output = s.input(from.output),
                             .log_sum_exp = static_cast<float*>(s.input(from.log_sum_exp)),
                             .output_gradient = s.input(from.output_gradient),
                             .qkv_gradient = s.output(shape.type, from.qkv.numel())});
       }});
}

void add_cached_attention(Cases& cases, const CachedAttentionShape& shape) {
  cases.push_back({label("cached attention", shape.type,
                         {shape.rows, shape.capacity, shape.position, shape.heads, shape.kv_heads,
                          shape.head_channels()}),
                   4 * tolerance_of(shape.type), [=](Session& s, Random& random) {
                     const Tensor qkv =
                         random.tensor(shape.type, shape.batch * shape.rows * shape.qkv_channels());
                     const Tensor cache = random.tensor(shape.type, 2 * shape.keys_numel());
                     cached_attention_forward(
                         s.context(cached_attention_workspace_bytes(shape, s.target())), shape, s.input(qkv),
                         s.changed(cache), s.output(shape.type, shape.batch * shape.rows * shape.channels));
                   }});
}

std::vector<AttentionCase> attention_cases(DType type) {
  std::vector<AttentionCase> cases;
  for (const std::int64_t sequence : {1, 63, 200})
    for (const std::int64_t kv_heads : {4, 2})
      for (const std::int64_t head_channels : {64, 30, 128})
        cases.push_back({.shape = {.batch = 2,
                                   .sequence = sequence,
                                   .channels = 4 * head_channels,
                                   .heads = 4,
                                   .type = type,
                                   .kv_heads = kv_heads}});
  for (const std::int64_t sequence : {64, 130, 192})
    cases.push_back({.shape = {.batch = 2, .sequence = sequence, .channels = 128, .heads = 2, .type = type},
                     .lowered = true});
  for (const std::int64_t head_channels : {64, 100})
    for (const std::int64_t sequence : {1, 64, 150})
      cases.push_back({.shape = {.batch = 2,
                                 .sequence = sequence,
                                 .channels = 4 * head_channels,
                                 .heads = 4,
                                 .type = type,
                                 .kv_heads = 2,
                                 .dropout = kDropout}});
  // In bf16 cuDNN's where the build has it: full tiles, and heads that share keys and values unevenly filled.
  cases.push_back({.shape = {.batch = 1, .sequence = 256, .channels = 128, .heads = 2, .type = type}});
  cases.push_back(
      {.shape = {.batch = 3, .sequence = 130, .channels = 432, .heads = 6, .type = type, .kv_heads = 2}});
  return cases;
}

Cases all_cases() {
  Cases cases;
  for (const DType type : kAllTypes) {
    for (const std::int64_t numel : {1, 7, 1003, 40001}) add_elementwise(cases, type, numel);
    if (type == DType::fp16) continue;
    for (const std::int64_t columns : {75, 264})
      for (const std::int64_t rows : {1, 70, 515}) add_gelu_bias(cases, type, rows, columns);
    for (const std::int64_t numel : {1, 7, 1003, 40001, 2048 * 300 + 5}) {
      add_squares(cases, type, numel);
      add_chain_squares(cases, type, numel);
    }
  }
  for (const DType gradient : kAllTypes)
    for (const DType parameter : kAllTypes) {
      add_updates(cases, gradient, parameter, 1003);
      for (const std::int64_t first : {std::int64_t{7}, (std::int64_t{1} << 32) - 400})
        add_updates(cases, gradient, parameter, 1003, first);
      for (const DType moments : kComputeTypes) add_update_runs(cases, gradient, parameter, moments);
    }
  add_losses(cases);
  add_gates(cases);
  for (const DType type : kComputeTypes) {
    for (const std::int64_t channels : {1, 29, 64, 772})
      for (const std::int64_t first : {0, 14}) {
        DropoutShape shape = {.batch = 3, .sequence = 17, .channels = channels, .type = type};
        shape.first_row = first;
        shape.rows = first > 0 ? 25 : 0;
        add_dropout(cases, shape);
      }
    for (const std::int64_t channels : {1, 29, 64, 772}) add_sums(cases, type, channels);
    for (const std::int64_t hidden : {29, 64, 1376})
      add_swiglu(cases, {.rows = 17, .hidden = hidden, .type = type});
    add_rotary(cases,
               {.batch = 2, .sequence = 7, .heads = 2, .head_channels = 26, .row_numel = 71, .type = type});
    add_rotary(cases,
               {.batch = 2, .sequence = 33, .heads = 3, .head_channels = 64, .row_numel = 256, .type = type});
    for (const std::int64_t rows : {0, 1, 70, 1100})
      for (const std::int64_t channels : {75, 200, 768}) {
        add_layer_norm(cases, {.rows = rows, .channels = channels, .type = type});
        add_rms_norm(cases, {.rows = rows, .channels = channels, .type = type});
      }
    for (const std::int64_t channels : {4096, 8192}) {  // a vector a thread in bf16, several
      add_layer_norm(cases, {.rows = 5, .channels = channels, .type = type});
      add_rms_norm(cases, {.rows = 5, .channels = channels, .type = type});
    }
    for (const std::int64_t positions : {0, 40})
      for (const std::int64_t channels : {75, 128})
        add_embedding(cases, {.batch = 3,
                              .sequence = 35,
                              .channels = channels,
                              .vocabulary = 20,
                              .positions = positions,
                              .type = type});
    for (const std::int64_t first : {0, 7, 14, 21})  // of which the last has nothing but padding
      for (const std::int64_t channels : {75, 128})
        add_embedding(cases, {.batch = 3,
                              .sequence = 35,
                              .channels = channels,
                              .vocabulary = 20,
                              .type = type,
                              .first_token = first,
                              .table_rows = 7});
    add_embedding(cases, {.batch = 2, .sequence = 100, .channels = 24, .vocabulary = 3, .type = type});
    add_embedding(cases, {.batch = 2, .sequence = 2500, .channels = 8, .vocabulary = 1000, .type = type});
    add_linear(cases, {.rows = 70, .in = 64, .out = 128, .type = type});
    add_linear(cases, {.rows = 33, .in = 75, .out = 51, .type = type});
    add_cross_entropy(cases,
                      {.rows = 37, .channels = 64, .vocabulary = 1003, .type = type, .chunk_bytes = 40000});
    if (type != DType::fp32)
      add_cross_entropy(cases, {.rows = 37,
                                .channels = 64,
                                .vocabulary = 1003,
                                .type = type,
                                .chunk_bytes = 40000,
                                .fp32_weight_gradient = true});
    for (const std::int64_t vocabulary : {9001, 20011, 60001})  // cached, kept by a block, too long for that
      add_cross_entropy(cases, {.rows = 9, .channels = 32, .vocabulary = vocabulary, .type = type});
    // The fourth rank has nothing but padding; rows that are cached, and longer ones.
    for (const int ranks : {1, 2, 4})
      add_softmax(cases, {.rows = 3, .channels = 8, .vocabulary = 5, .type = type}, ranks);
    for (const int ranks : {1, 2, 3}) {
      add_softmax(cases, {.rows = 37, .channels = 64, .vocabulary = 1003, .type = type}, ranks);
      add_softmax(cases, {.rows = 5, .channels = 16, .vocabulary = 60001, .type = type}, ranks);
    }
    for (const AttentionCase& one : attention_cases(type)) add_attention(cases, one);
    // In one block of places, and in two.
    for (const auto& [position, rows, head_channels] :
         {std::tuple(0, 1, 30), {0, 20, 128}, {37, 3, 128}, {560, 1, 128}, {560, 3, 30}})
      add_cached_attention(cases, {.batch = 2,
                                   .rows = rows,
                                   .capacity = 600,
                                   .position = position,
                                   .channels = 4 * head_channels,
                                   .heads = 4,
                                   .type = type,
                                   .kv_heads = 2});
  }
  return cases;
}

// --- The comparison ----------------------------------------------------------------------------------------

std::vector<Doubles> run(const Case& one, DeviceType device, int threads, int shift) {
  Session session(device, threads, shift);
  Random random(std::hash<std::string>{}(one.name));
  one.run(session, random);
  return session.take(one.name);
}

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

void expect_same(const Case& one, const std::vector<Doubles>& actual, const std::vector<Doubles>& expected) {
  ASSERT_EQ(actual.size(), expected.size()) << one.name;
  for (std::size_t output = 0; output < expected.size(); ++output)
    for (std::size_t i = 0; i < expected[output].size(); ++i)
      ASSERT_TRUE(same(actual[output][i], expected[output][i]))
          << one.name << ": output " << output << " at " << i << " is " << actual[output][i] << ", expected "
          << expected[output][i];
}

void compare(const Case& one, const std::vector<Doubles>& actual, const std::vector<Doubles>& expected) {
  if (one.tolerance == 0.0) return expect_same(one, actual, expected);
  ASSERT_EQ(actual.size(), expected.size()) << one.name;
  for (std::size_t output = 0; output < expected.size(); ++output)
    expect_close(actual[output], expected[output], one.tolerance,
                 one.name + ": output " + std::to_string(output));
}

std::string missing_gpu() { return read_cuda_machine().unusable; }

// One in so many, see sampled_each(), from `first` on; shuffled, as cases come in patterns that would leave
// out the same variants of every shape.
Cases sampled_cases(std::size_t first, int of_every_run) {
  const auto each = static_cast<std::size_t>(tessera::testing::sampled_each(of_every_run));
  Cases all = all_cases();
  if (each > 1) std::ranges::shuffle(all, std::mt19937(1));
  Cases some;
  for (std::size_t i = first % each; i < all.size(); i += each) some.push_back(all[i]);
  return some;
}

// The table itself, where no GPU is: every call of it is legal, and the harness tells a wrong result.
TEST(CudaTable, HoldsOnTheCpu) {
  for (const Case& one : sampled_cases(0, 4))
    compare(one, run(one, DeviceType::cpu, std::min(2, kMostThreads), 1), run(one, DeviceType::cpu, 1, 0));
}

TEST(CudaTable, TellsAWrongResult) {
  const Case exact = {"exact", 0.0, {}}, close = {"close", 1e-3, {}};
  EXPECT_FATAL_FAILURE(compare(Case{"exact", 0.0, {}}, {{1.0, 2.0}}, {{1.0, 2.0000001}}), "output 0 at 1");
  EXPECT_NONFATAL_FAILURE(compare(Case{"close", 1e-3, {}}, {{1.0, 2.0}}, {{1.0, 2.1}}), "close: output 0");
  compare(exact, {{std::nan("")}}, {{std::nan("")}});
  compare(close, {{1.0, 2.0}}, {{1.0, 2.0001}});
}

// Backward with the roundings of cuDNN's graph: of the weights, the gradients of the scores, and what each
// query head adds to the gradients of keys and values.
Doubles rounded_backward(const AttentionShape& shape, const AttentionTensors& from) {
  const auto rounded = [](double x) {
    return static_cast<double>(to_float(from_float<Bf16>(static_cast<float>(x))));
  };
  const std::int64_t d = shape.head_channels(), row = shape.qkv_channels();
  const double scale = 1.0 / std::sqrt(static_cast<double>(d));
  const Doubles qkv = from.qkv.doubles(), output = from.output.doubles(), sums = from.log_sum_exp.doubles(),
                gradient = from.output_gradient.doubles();
  const auto dot = [d](const double* a, const double* b) { return std::inner_product(a, a + d, b, 0.0); };
  const auto add = [d](double factor, const double* x, double* to) {
    for (std::int64_t c = 0; c < d; ++c) to[c] += factor * x[c];
  };
  Doubles result(qkv.size());
  for (std::int64_t item = 0; item < shape.batch; ++item)
    for (std::int64_t head = 0; head < shape.heads; ++head) {
      const std::int64_t shared = head / (shape.heads / shape.kv_heads_or_heads());
      const std::int64_t query = item * shape.sequence * row + head * d;
      const std::int64_t key = item * shape.sequence * row + shape.channels + shared * d;
      const std::int64_t value = key + shape.kv_heads_or_heads() * d;
      const std::int64_t out = item * shape.sequence * shape.channels + head * d;
      Doubles own(qkv.size());
      for (std::int64_t i = 0; i < shape.sequence; ++i) {
        const double* const dy = &gradient[out + i * shape.channels];
        const double delta = dot(dy, &output[out + i * shape.channels]);
        for (std::int64_t j = 0; j <= i; ++j) {
          const double weight = std::exp(scale * dot(&qkv[query + i * row], &qkv[key + j * row]) -
                                         sums[(item * shape.heads + head) * shape.sequence + i]);
          const double score = rounded(weight * (dot(dy, &qkv[value + j * row]) - delta)) * scale;
          add(score, &qkv[key + j * row], &own[query + i * row]);
          add(score, &qkv[query + i * row], &own[key + j * row]);
          add(rounded(weight), dy, &own[value + j * row]);
        }
      }
      for (std::size_t i = 0; i < own.size(); ++i) result[i] += rounded(own[i]);
    }
  for (double& x : result) x = rounded(x);
  return result;
}

TEST(CudaTable, AllowsForWeightsThatAreRounded) {
  for (const AttentionCase& one : attention_cases(DType::bf16)) {
    if (one.shape.dropout.threshold > 0) continue;  // which cuDNN is not asked for
    Random random(std::hash<std::string>{}(name_of(one) + " backward"));
    const AttentionTensors from(random, one);
    Tensor expected(DType::bf16, from.qkv.numel());
    attention_backward(TestContext(1, attention_backward_workspace_bytes(one.shape, 1)), one.shape,
                       {.qkv = from.qkv.data(),
                        .output = from.output.data(),
                        .log_sum_exp = static_cast<const float*>(from.log_sum_exp.data()),
                        .output_gradient = from.output_gradient.data(),
                        .qkv_gradient = expected.data()});
    expect_close(rounded_backward(one.shape, from), expected.doubles(), backward_tolerance(DType::bf16) / 1.5,
                 name_of(one));
  }
}

TEST(CudaErrors, WithoutAGpuACallSaysSo) {
  if (missing_gpu().empty()) GTEST_SKIP() << "there is a GPU";
  float x = 1.0f;
  const MatmulShape product = {.m = 1, .n = 1, .k = 1};
  std::vector<unsigned char> workspace(
      static_cast<std::size_t>(matmul_workspace_bytes(product, {1, DeviceType::cuda})));
  const ComputeContext context = {
      .workspace = {.data = workspace.data(), .bytes = static_cast<std::int64_t>(workspace.size())},
      .device = DeviceType::cuda};
  EXPECT_THROW(fill(context, DType::fp32, 1, 2.0f, &x), EnvironmentError);
  EXPECT_THROW(matmul(context, product, &x, &x, nullptr, &x), EnvironmentError);
}

class CudaOps : public ::testing::TestWithParam<int> {};  // by how many elements tensors are shifted

TEST_P(CudaOps, AgreeWithTheCpu) {
  if (const std::string missing = missing_gpu(); !missing.empty()) GTEST_SKIP() << missing;
  for (const Case& one : sampled_cases(static_cast<std::size_t>(GetParam()), 1))
    compare(one, run(one, DeviceType::cuda, 1, GetParam()), run(one, DeviceType::cpu, 1, 0));
}

TEST_P(CudaOps, RepeatBitForBit) {
  if (const std::string missing = missing_gpu(); !missing.empty()) GTEST_SKIP() << missing;
  for (const Case& one : all_cases())
    expect_same(one, run(one, DeviceType::cuda, 1, GetParam()), run(one, DeviceType::cuda, 1, GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Shift, CudaOps, ::testing::Values(0, 1));

TEST(CudaErrors, WrongTokensAndTargetsGiveNaN) {
  if (const std::string missing = missing_gpu(); !missing.empty()) GTEST_SKIP() << missing;
  const EmbeddingShape embedding = {.batch = 1, .sequence = 3, .channels = 8, .vocabulary = 5};
  const Case tokens = {"wrong tokens", 0.0, [&](Session& s, Random& random) {
                         embedding_forward(
                             s.context(), embedding, s.input(std::vector<std::int32_t>{-1, 4, 5}),
                             s.input(random.tensor(DType::fp32, 40)), nullptr, s.output(DType::fp32, 24));
                       }};
  const Doubles rows = run(tokens, DeviceType::cuda, 1, 0)[0];
  for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(std::isnan(rows[i]), i / 8 != 1) << i;
  const Case partial = {"wrong tokens, partial", 0.0, [&](Session& s, Random& random) {
                          EmbeddingShape part = embedding;  // without token 4, but with a padding row for 5
                          part.first_token = 5;
                          part.table_rows = 1;
                          embedding_forward_partial(s.context(), part,
                                                    s.input(std::vector<std::int32_t>{-1, 4, 5}),
                                                    s.input(random.tensor(DType::fp32, 8)), s.floats(24));
                        }};
  const Doubles parts = run(partial, DeviceType::cuda, 1, 0)[0];
  for (std::size_t i = 0; i < parts.size(); ++i)
    EXPECT_TRUE(i / 8 == 1 ? parts[i] == 0.0 && std::signbit(parts[i]) : std::isnan(parts[i])) << i;

  const auto total = [](const CrossEntropyLoss& loss) { return Doubles{loss.sum}; };
  for (const int vocabulary : {5, 20011, 60001}) {  // of which a block keeps nothing, all, a part
    const CrossEntropyShape head = {.rows = 5, .channels = 8, .vocabulary = vocabulary};
    const Case targets = {"wrong targets", 0.0, [&](Session& s, Random& random) {
                            cross_entropy_forward_backward(
                                s.context(cross_entropy_workspace_bytes(head, s.target())), head,
                                {.input = s.input(random.tensor(DType::fp32, head.rows * 8)),
                                 .weight = s.input(random.tensor(DType::fp32, head.vocabulary * 8)),
                                 .targets = s.input(std::vector<std::int32_t>{-2, -1, vocabulary, 4, -1}),
                                 .losses = s.floats(head.rows),
                                 .total = s.result<CrossEntropyLoss>(total),
                                 .input_gradient = s.output(DType::fp32, head.rows * 8)});
                          }};
    const std::vector<Doubles> results = run(targets, DeviceType::cuda, 1, 0);  // losses, gradients, sum
    const auto expect_row = [&](std::size_t row, const std::function<bool(double)>& is_right) {
      EXPECT_TRUE(is_right(results[0][row]))
          << vocabulary << ", loss of row " << row << ": " << results[0][row];
      for (std::size_t i = 0; i < 8; ++i)
        EXPECT_TRUE(is_right(results[1][row * 8 + i])) << vocabulary << ", gradient of row " << row;
    };
    const auto is_zero = [](double x) { return x == 0.0; };
    for (const std::size_t row : {0, 2}) expect_row(row, [](double x) { return std::isnan(x); });
    for (const std::size_t row : {1, 4}) expect_row(row, is_zero);
    expect_row(3, [&](double x) { return std::isfinite(x) && !is_zero(x); });
    EXPECT_TRUE(std::isnan(results[2][0])) << "the sum";
  }
}

TEST(CudaErrors, WrongTargetsOfASplitVocabularyGiveNaN) {
  if (const std::string missing = missing_gpu(); !missing.empty()) GTEST_SKIP() << missing;
  for (const bool with_gradients : {false, true}) {
    const CrossEntropyShape head = {.rows = 5, .channels = 8, .vocabulary = 5};
    const Case targets = {"wrong targets of ranks", 0.0, [&](Session& s, Random& random) {
                            // Rank 1 has a column for 5, which is padding.
                            run_split_head(s, head, 2, with_gradients, random.tensor(DType::fp32, 40),
                                           random.tensor(DType::fp32, 40), {-2, -1, 5, 4, -1});
                          }};
    const std::vector<Doubles> results = run(targets, DeviceType::cuda, 1, 0);
    const std::size_t each = with_gradients ? 3 : 1;  // losses, dx, dw of each rank, then totals
    for (std::size_t rank = 0; rank < 2; ++rank) {
      const Doubles& losses = results[rank * each];
      for (const std::size_t wrong : {0, 2}) EXPECT_TRUE(std::isnan(losses[wrong]));
      EXPECT_TRUE(losses[1] == 0.0 && losses[4] == 0.0 && losses[3] > 0.0);
      EXPECT_TRUE(std::isnan(results[2 * each + rank][0])) << "the total";
      for (std::size_t i = 0; with_gradients && i < 40; ++i) {
        const double dx = results[rank * each + 1][i];
        EXPECT_TRUE(i / 8 == 0 || i / 8 == 2 ? std::isnan(dx) : i / 8 == 3 ? dx != 0.0 : dx == 0.0) << i;
      }
    }
  }
}

// Bits of softmax.h and of cross_entropy.h on the same device. Input gradients in bf16 are left out: here
// they are fp32, a product of another kind.
TEST(CudaSoftmax, OneRankHasTheBitsOfCrossEntropy) {
  if (const std::string missing = missing_gpu(); !missing.empty()) GTEST_SKIP() << missing;
  for (const DType type : kComputeTypes)
    for (const std::int64_t vocabulary : {1003, 9001, 20011, 60001}) {
      const CrossEntropyShape head = {.rows = 9, .channels = 16, .vocabulary = vocabulary, .type = type};
      Random random(1);
      const Tensor x = random.tensor(type, head.rows * 16), w = random.tensor(type, vocabulary * 16, 0.2);
      const std::vector<std::int32_t> targets = some_targets(random, head);
      const Case split = {"split", 0.0,
                          [&](Session& s, Random&) { run_split_head(s, head, 1, true, x, w, targets); }};
      const Case whole = {"whole", 0.0, [&](Session& s, Random&) {
                            cross_entropy_forward_backward(
                                s.context(cross_entropy_workspace_bytes(head, s.target())), head,
                                {.input = s.input(x),
                                 .weight = s.input(w),
                                 .targets = s.input(targets),
                                 .scale = 3.0f,
                                 .losses = s.floats(head.rows),
                                 .total = s.result<LossTotal>(values_of_total),
                                 .input_gradient = s.output(type, x.numel()),
                                 .weight_gradient = s.output(type, w.numel())});
                          }};
      std::vector<Doubles> actual = run(split, DeviceType::cuda, 1, 0);
      const std::vector<Doubles> expected = run(whole, DeviceType::cuda, 1, 0);
      if (type == DType::bf16) actual[1] = expected[1];
      expect_same(whole, actual, expected);
    }
}

// An op that does the work of two in one pass has the bits of the two.
TEST(CudaFused, HasTheBitsOfTheSeparateOps) {
  if (const std::string missing = missing_gpu(); !missing.empty()) GTEST_SKIP() << missing;
  const auto expect_equal = [](const std::string& op, const std::function<void(Session&)>& fused,
                               const std::function<void(Session&)>& separate) {
    const Case one = {op, 0.0, [&](Session& s, Random&) { fused(s); }};
    const Case two = {op, 0.0, [&](Session& s, Random&) { separate(s); }};
    expect_same(one, run(one, DeviceType::cuda, 1, 0), run(two, DeviceType::cuda, 1, 0));
  };
  for (const DType type : kComputeTypes)
    for (const std::int64_t columns : {75, 264, 8192}) {  // by elements, by a vector a thread, by several
      const std::int64_t rows = columns > 1000 ? 3 : 70, numel = rows * columns;
      Random random(static_cast<std::uint64_t>(columns));
      const Tensor a = random.tensor(type, numel, 2.0), b = random.tensor(type, numel);
      const Tensor gain = random.tensor(type, columns), bias = random.tensor(type, columns);
      const LayerNormShape layer = {.rows = rows, .channels = columns, .type = type};
      const auto layer_norm = [&](Session& s, const void* input, const void* residual, void* sum) {
        layer_norm_forward(s.context(), layer,
                           {.input = input,
                            .residual = residual,
                            .sum = sum,
                            .gain = s.input(gain),
                            .bias = s.input(bias),
                            .output = s.output(type, numel),
                            .mean = s.floats(rows),
                            .rstd = s.floats(rows)});
      };
      const RmsNormShape rms = {.rows = rows, .channels = columns, .type = type};
      const auto rms_norm = [&](Session& s, const void* input, const void* residual, void* sum) {
        rms_norm_forward(s.context(), rms,
                         {.input = input,
                          .residual = residual,
                          .sum = sum,
                          .gain = s.input(gain),
                          .output = s.output(type, numel),
                          .rstd = s.floats(rows)});
      };
      const auto expect_sum_normed = [&](const std::string& op, const auto& norm) {
        expect_equal(
            op, [&](Session& s) { norm(s, s.input(a), s.input(b), s.output(type, numel)); },
            [&](Session& s) {
              void* const sum = s.output(type, numel);
              add(s.context(), type, numel, s.input(a), s.input(b), sum);
              norm(s, sum, nullptr, nullptr);
            });
      };
      expect_sum_normed(label("add and layer norm", type, {rows, columns}), layer_norm);
      expect_sum_normed(label("add and rms norm", type, {rows, columns}), rms_norm);
      const std::int64_t scratch = column_sum_workspace_bytes(rows, columns, Target(1, DeviceType::cuda));
      expect_equal(
          label("gelu backward and bias", type, {rows, columns}),
          [&](Session& s) {
            gelu_backward_bias(s.context(scratch), {.rows = rows,
                                                    .columns = columns,
                                                    .type = type,
                                                    .input = s.input(a),
                                                    .output_gradient = s.input(b),
                                                    .input_gradient = s.output(type, numel),
                                                    .beta = 1.0f,
                                                    .bias_gradient = s.changed(bias)});
          },
          [&](Session& s) {
            void* const gradient = s.output(type, numel);
            gelu_backward(s.context(), type, numel, s.input(a), s.input(b), gradient);
            column_sum(s.context(scratch), rows, columns, type, gradient, 1.0f, s.changed(bias));
          });
    }
}

}  // namespace
}  // namespace tessera::kernels::testing
