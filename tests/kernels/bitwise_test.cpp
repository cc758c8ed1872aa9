// What must not change a bit: the instruction set, and other threads that compute at the same time.
#include <atomic>
#include <thread>

#include "kernels/rotary_math.h"
#include "tests/kernels/instruction_sets.h"
#include "tests/kernels/support.h"

namespace tessera::kernels::testing {
namespace {

// Runs every op once on fixed inputs and collects the outputs. Ops that may depend on the instruction set
// (matmul, attention) are included on request.
class AllOps {
 public:
  AllOps(DType type, int threads, bool with_matmul) : type_(type), threads_(threads) {
    elementwise();
    layers();
    reductions();
    updates();
    if (with_matmul) products();
  }
  bool operator==(const AllOps& other) const { return outputs_ == other.outputs_; }
  std::size_t first_difference(const AllOps& other) const {
    std::size_t i = 0;
    while (i < outputs_.size() && outputs_[i] == other.outputs_[i]) ++i;
    return i;
  }

 private:
  Tensor& output(DType type, std::int64_t numel) { return outputs_.emplace_back(type, numel); }

  void elementwise() {
    const std::int64_t numel = 1003;
    const Tensor x = random_.tensor(type_, numel, 4.0), y = random_.tensor(type_, numel);
    const TestContext context(threads_);
    gelu_forward(context, type_, numel, x.data(), output(type_, numel).data());
    gelu_backward(context, type_, numel, x.data(), y.data(), output(type_, numel).data());
    add(context, type_, numel, x.data(), y.data(), output(type_, numel).data());
    const std::vector<float> frequencies = rotary_frequencies(26, 10000.0);
    const RotaryShape rotary = {
        .batch = 2, .sequence = 7, .heads = 2, .head_channels = 26, .row_numel = 71, .type = type_};
    Tensor& rotated = outputs_.emplace_back(x);
    rotary_forward(TestContext(threads_, rotary_workspace_bytes(rotary)), rotary, frequencies.data(),
                   rotated.data());
    const SwigluShape swiglu = {.rows = 17, .hidden = 29, .type = type_};
    swiglu_forward(context, swiglu, x.data(), output(type_, 17 * 29).data());
    swiglu_backward(context, swiglu, x.data(), y.data(), output(type_, 17 * 58).data());
    dropout(context, {.batch = 2, .sequence = 3, .channels = 151, .type = type_},
            {.threshold = 9999, .key = 77}, x.data(), output(type_, 6 * 151).data());
    const Tensor sum = random_.tensor(DType::fp32, numel);
    const auto* const sums = static_cast<const float*>(sum.data());
    finish_sum(context, {.rows = 17, .channels = 59, .type = type_}, sums, y.data(),
               output(type_, 17 * 59).data());
    add_positions(context, {.first_row = 3, .rows = 17, .sequence = 5, .channels = 59, .type = type_}, sums,
                  y.data(), output(type_, 17 * 59).data());
    for (const DType to : kAllTypes) cast(context, numel, type_, x.data(), to, output(to, numel).data());
  }

  void layers() {
    const LayerNormShape s = {.rows = 70, .channels = 75, .type = type_};
    const Tensor x = random_.tensor(type_, 70 * 75), gain = random_.tensor(type_, 75),
                 dy = random_.tensor(type_, 70 * 75);
    Tensor mean(DType::fp32, 70), rstd(DType::fp32, 70);
    layer_norm_forward(TestContext(threads_), s,
                       {.input = x.data(),
                        .gain = gain.data(),
                        .bias = gain.data(),
                        .output = output(type_, 70 * 75).data(),
                        .mean = mean.floats(),
                        .rstd = rstd.floats()});
    Tensor dx(type_, 70 * 75), dgain(type_, 75), dbias(type_, 75);
    layer_norm_backward(TestContext(threads_, layer_norm_backward_workspace_bytes(s, threads_)), s,
                        {.input = x.data(),
                         .mean = mean.floats(),
                         .rstd = rstd.floats(),
                         .gain = gain.data(),
                         .output_gradient = dy.data(),
                         .input_gradient = dx.data(),
                         .gain_gradient = dgain.data(),
                         .bias_gradient = dbias.data()});
    for (const Tensor& t : {mean, rstd, dx, dgain, dbias}) outputs_.push_back(t);
    rms_norm(x, gain, dy);
    softmax();
    const EmbeddingShape e = {
        .batch = 2, .sequence = 35, .channels = 75, .vocabulary = 20, .positions = 35, .type = type_};
    const auto tokens = random_.tokens(70, 20);
    Tensor dtokens(type_, 20 * 75), dpositions(type_, 35 * 75);
    embedding_backward(TestContext(threads_, embedding_backward_workspace_bytes(e, threads_)), e,
                       {.tokens = tokens.data(),
                        .output_gradient = dy.data(),
                        .token_gradient = dtokens.data(),
                        .position_gradient = dpositions.data()});
    outputs_.push_back(dtokens);
    outputs_.push_back(dpositions);
    EmbeddingShape part = e;
    part.positions = 0;
    part.first_token = part.table_rows = 7;
    embedding_forward_partial(TestContext(threads_), part, tokens.data(), dtokens.data(),
                              output(DType::fp32, 70 * 75).floats());
  }

  // Two ranks of a vocabulary of 2499; the second has a column of padding.
  void softmax() {
    SoftmaxShape s = {.rows = 11, .columns = 1250, .vocabulary = 2499, .ranks = 2, .type = type_};
    const auto targets = random_.tokens(11, 2499);
    Tensor statistics(DType::fp32, 2 * 11 * 3), losses(DType::fp32, 11);
    auto* const gathered = reinterpret_cast<SoftmaxStatistics*>(statistics.floats());
    std::vector<Tensor> logits;
    for (const std::int64_t rank : {0, 1}) {
      s.first_column = rank * 1250;
      logits.push_back(random_.tensor(DType::fp32, 11 * 1250, 4.0));
      softmax_statistics(TestContext(threads_), s, logits.back().floats(), targets.data(),
                         gathered + rank * 11);
    }
    for (const std::int64_t rank : {0, 1}) {
      s.first_column = rank * 1250;
      float* const own = logits[static_cast<std::size_t>(rank)].floats();
      softmax_gradients(
          TestContext(threads_), s,
          {.statistics = gathered, .targets = targets.data(), .logits = own, .losses = losses.floats()});
      Tensor gradients(type_, 11 * 1250);
      std::memcpy(gradients.data(), own, static_cast<std::size_t>(11 * 1250 * bytes_of(type_)));
      outputs_.push_back(gradients);
    }
    for (const Tensor& t : {statistics, losses}) outputs_.push_back(t);
  }

  void rms_norm(const Tensor& x, const Tensor& gain, const Tensor& dy) {
    const RmsNormShape s = {.rows = 70, .channels = 75, .type = type_};
    Tensor rstd(DType::fp32, 70), dx(type_, 70 * 75), dgain(type_, 75);
    rms_norm_forward(TestContext(threads_), s,
                     {.input = x.data(),
                      .gain = gain.data(),
                      .output = output(type_, 70 * 75).data(),
                      .rstd = rstd.floats()});
    rms_norm_backward(TestContext(threads_, rms_norm_backward_workspace_bytes(s, threads_)), s,
                      {.input = x.data(),
                       .rstd = rstd.floats(),
                       .gain = gain.data(),
                       .output_gradient = dy.data(),
                       .input_gradient = dx.data(),
                       .gain_gradient = dgain.data()});
    for (const Tensor& t : {rstd, dx, dgain}) outputs_.push_back(t);
  }

  void reductions() {
    const std::int64_t numel = 20011;
    const Tensor x = random_.tensor(type_, numel), y = random_.tensor(type_, numel);
    const void* contributions[] = {x.data(), y.data(), x.data()};
    SquareSum of_chain, of_input;
    ordered_chain(TestContext(threads_), numel, type_, contributions, 0.0f,
                  output(DType::fp32, numel).floats(), {&of_chain, 0});
    sum_of_squares(TestContext(threads_), numel, type_, x.data(), {&of_input, 0});
    for (const SquareSum& squares : {of_chain, of_input})
      std::memcpy(output(DType::fp32, sizeof(squares) / sizeof(float)).data(), &squares, sizeof(squares));
  }

  void updates() {
    const std::int64_t numel = 1003;
    const Tensor gradient = random_.tensor(type_, numel);
    Tensor master = random_.tensor(DType::fp32, numel), m = random_.tensor(DType::fp32, numel, 0.1);
    Tensor v(DType::fp32, numel), parameter(type_, numel);
    for (std::int64_t i = 0; i < numel; ++i) v.set(i, std::abs(random_.normal()));
    OptimizerArguments arguments{
        .numel = numel,
        .gradient_type = type_,
        .gradient = gradient.data(),
        .master = master.floats(),
        .moment_count = 2,
        .moments = {m.floats(), v.floats()},
        .parameter_type = type_,
        .parameter = parameter.data(),
        .coefficients = rules::coefficients_of(AdamWOptions{.beta2 = 0.95},
                                               {.learning_rate = 1e-3, .weight_decay = 0.1})};
    optimizer_update(TestContext(threads_), arguments);
    for (const Tensor& t : {master, m, v, parameter}) outputs_.push_back(t);
    arguments.moment_count = 1;
    arguments.coefficients =
        rules::coefficients_of(SgdOptions{.momentum = 0.9, .nesterov = true}, {.learning_rate = 0.1});
    optimizer_update(TestContext(threads_), arguments);
    for (const Tensor& t : {master, m, parameter}) outputs_.push_back(t);
  }

  void products() {
    const CrossEntropyShape s = {
        .rows = 20, .channels = 48, .vocabulary = 100, .type = type_, .chunk_bytes = 100 * 4 * 8};
    const Tensor x = random_.tensor(type_, 20 * 48), w = random_.tensor(type_, 100 * 48);
    const auto targets = random_.tokens(20, 100);
    Tensor losses(DType::fp32, 20), dx(type_, 20 * 48), dw(type_, 100 * 48);
    CrossEntropyLoss total;
    cross_entropy_forward_backward(TestContext(threads_, cross_entropy_workspace_bytes(s, threads_)), s,
                                   {.input = x.data(),
                                    .weight = w.data(),
                                    .targets = targets.data(),
                                    .losses = losses.floats(),
                                    .total = &total,
                                    .input_gradient = dx.data(),
                                    .weight_gradient = dw.data()});
    const AttentionShape a = {.batch = 1, .sequence = 70, .channels = 32, .heads = 2, .type = type_};
    const Tensor qkv = random_.tensor(type_, 70 * 96);
    Tensor y(type_, 70 * 32), statistics(DType::fp32, 140);
    attention_forward(TestContext(threads_, attention_forward_workspace_bytes(a, threads_)), a, qkv.data(),
                      y.data(), statistics.floats());
    for (const Tensor& t : {losses, dx, dw, y, statistics}) outputs_.push_back(t);
  }

  DType type_;
  int threads_;
  Random random_{7};
  std::vector<Tensor> outputs_;
};

TEST(Bitwise, NoInstructionSetChangesAResult) {
  for (const DType type : kComputeTypes) {
    const AllOps best(type, 1, false);
    for_each_instruction_set([&](const char* name) {
      const AllOps other(type, 1, false);
      EXPECT_TRUE(best == other) << name << " differs at output " << best.first_difference(other);
    });
  }
}

TEST(Bitwise, RanksAsThreadsDoNotDisturbEachOther) {
  for (const DType type : kComputeTypes)
    for (const int threads : kThreadCounts) {
      const AllOps alone(type, threads, true);
      std::atomic<int> wrong = 0;
      std::vector<std::thread> ranks;
      for (int rank = 0; rank < 4; ++rank)
        ranks.emplace_back([&] {
          for (int repeat = 0; repeat < 3; ++repeat) wrong += !(AllOps(type, threads, true) == alone);
        });
      for (std::thread& rank : ranks) rank.join();
      EXPECT_EQ(wrong, 0);
    }
}

}  // namespace
}  // namespace tessera::kernels::testing
