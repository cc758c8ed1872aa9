// Attention by cuDNN's path, from the public functions to the graphs that are described to cuDNN, against
// attention in float64.
#include <gtest/gtest.h>

#include <thread>

#include "kernels/cuda/cudnn_graph.h"
#include "tests/emulated_cuda/cudnn/engines.h"
#include "tests/emulated_cuda/cudnn/gpu_attention.h"
#include "tests/emulated_cuda/cudnn/stand_in.h"
#include "tests/emulated_cuda/emulator.h"

namespace tessera::kernels::testing {
namespace {

using cuda::AttentionSlice;
using emulated_cudnn::seen;

// Of the root mean square, which the largest elements are several times: of a few roundings to bf16.
constexpr double kForward = 0.06, kBackward = 0.08;

const AttentionShape kShapes[] = {bf16_shape(2, 16, 4, 4, 16),  bf16_shape(2, 63, 4, 4, 64),
                                  bf16_shape(1, 64, 4, 2, 128), bf16_shape(3, 21, 4, 1, 24),
                                  bf16_shape(2, 2, 4, 2, 8),    bf16_shape(2, 130, 2, 2, 72)};

std::string describe(const AttentionShape& s) {
  return std::to_string(s.batch) + " x " + std::to_string(s.sequence) + ", " + std::to_string(s.heads) + "/" +
         std::to_string(s.kv_heads) + " heads of " + std::to_string(s.head_channels());
}

void expect_attention(const AttentionInputs& in, const AttentionOutputs& out, const std::string& what) {
  const AttentionReference reference = {in.shape};
  Doubles log_sum_exp;
  const Doubles output = reference.forward(in.qkv.doubles(), &log_sum_exp);
  expect_close(out.output, output, kForward, what + ": output");
  expect_close(out.log_sum_exp, log_sum_exp, 1e-5, what + ": log_sum_exp");
  expect_close(out.gradient, reference.backward(in.qkv.doubles(), in.output_gradient.doubles()), kBackward,
               what + ": gradient");
}

TEST(CudnnAttention, IsAttention) {
  for (const AttentionShape& shape : kShapes) {
    ASSERT_TRUE(cuda::cudnn_takes_forward(shape) && cuda::cudnn_takes_backward(shape)) << describe(shape);
    const int before = seen().runs;
    const AttentionInputs in(shape, 7);
    expect_attention(in, attend(in), describe(shape));
    EXPECT_EQ(seen().runs, before + 2) << describe(shape);
    EXPECT_EQ(seen().engine, emulated_cudnn::kRightEngine) << "the deterministic one whose workspace fits";
  }
}

TEST(CudnnAttention, SlicesOfBackwardAreAttention) {
  const AttentionShape shape = bf16_shape(4, 20, 6, 3, 16);
  const AttentionInputs in(shape, 3);
  const AttentionOutputs whole = attend(in);
  for (const auto& [slice, count] :
       {std::pair{AttentionSlice{2, 3}, 2}, {AttentionSlice{1, 3}, 4}, {AttentionSlice{1, 1}, 12}}) {
    const int before = seen().runs;
    const AttentionOutputs out = attend(in, &slice);
    const std::string what =
        std::to_string(slice.items) + " items, " + std::to_string(slice.kv_heads) + " heads";
    expect_attention(in, out, what);
    EXPECT_EQ(out, whole) << what;
    EXPECT_EQ(seen().runs, before + 1 + count) << what;
  }
}

TEST(CudnnAttention, GivesTheSameBitsAgain) {
  const AttentionInputs in(bf16_shape(2, 33, 4, 2, 32), 5);
  const AttentionOutputs first = attend(in);
  for (int again = 0; again < 3; ++again) EXPECT_EQ(attend(in), first);
}

// One for each shape, slice, direction and thread, besides one that answers how much workspace it takes;
// another thread of the test's begins with what one that ended has left.
TEST(CudnnAttention, GraphsAreMadeOnce) {
  const AttentionInputs in(bf16_shape(2, 19, 4, 2, 32), 5), longer(bf16_shape(2, 20, 4, 2, 32), 5);
  const AttentionSlice half = {1, 2};
  attend(in);
  int graphs = seen().graphs;
  attend(in);
  std::thread([&] { attend(in); }).join();
  EXPECT_LE(seen().graphs, graphs + 2) << "no more than the other thread's own";
  graphs = seen().graphs;
  std::thread([&] { attend(in); }).join();
  attend(in);
  EXPECT_EQ(seen().graphs, graphs);
  attend(in, &half);
  EXPECT_EQ(seen().graphs, graphs + 1);
  attend(longer);
  EXPECT_EQ(seen().graphs, graphs + 1 + 4);
}

TEST(CudnnAttention, ThreadsRunAtOnceOnGpusOfTheirOwn) {
  const AttentionInputs in(bf16_shape(2, 24, 4, 2, 16), 9);
  const AttentionOutputs expected = attend(in);
  std::vector<std::thread> threads;
  for (const int gpu : {0, 1, 1})
    threads.emplace_back([&, gpu] {
      device::make_current(gpu);
      for (int again = 0; again < 3; ++again) EXPECT_EQ(attend(in), expected) << "GPU " << gpu;
    });
  for (std::thread& thread : threads) thread.join();
}

// The handle is a thread's, the stream each call's.
TEST(CudnnAttention, RunsOnTheStreamOfTheCall) {
  const AttentionInputs in(bf16_shape(1, 16, 4, 2, 16), 9);
  const GpuTensor qkv(in.qkv), output(Tensor(DType::bf16, in.output_gradient.numel())),
      log_sum_exp(Tensor(DType::fp32, 4 * 16));
  const std::int64_t bytes = attention_forward_workspace_bytes(in.shape, on_gpu(0));
  const GpuContext first(bytes), second(bytes);
  for (const GpuContext* context : {&first, &second, &first}) {
    attention_forward(*context, in.shape, qkv.data(), output.data(), log_sum_exp.floats());
    EXPECT_EQ(seen().stream, context->stream());
    context->finish();
  }
  emulated_cuda::hold(second.stream());
  attention_forward(second, in.shape, qkv.data(), output.data(), log_sum_exp.floats());
  device::check_cuda(cudaStreamSynchronize(first.stream()), "does not wait for the other");
  emulated_cuda::release(second.stream());
  second.finish();
}

TEST(CudnnAttention, TakesOnlyWhatItIsFor) {
  const int before = seen().runs;
  AttentionShape fp32 = bf16_shape(1, 16, 4, 2, 16);
  fp32.type = DType::fp32;
  for (const AttentionShape& shape : {fp32, bf16_shape(1, 16, 4, 2, 30)}) {
    EXPECT_FALSE(cuda::cudnn_takes_forward(shape));
    EXPECT_EQ(attention_forward_workspace_bytes(shape, on_gpu(0)), 0);
  }
  EXPECT_EQ(seen().runs, before);
}

// To the byte what cuDNN's plan was found to take on an A100: kernels_cudnn_graph_test has it plan.
TEST(CudnnAttention, WorkspaceIsWhatThePlanTakes) {
  const std::pair<AttentionShape, std::int64_t> kFound[] = {{bf16_shape(2, 256, 4, 2, 128), 2105472},
                                                            {bf16_shape(2, 200, 4, 2, 64), 1464704},
                                                            {bf16_shape(2, 63, 4, 4, 64), 67680},
                                                            {bf16_shape(3, 1000, 6, 2, 72), 43004864},
                                                            {bf16_shape(2, 2, 4, 2, 64), 69824}};
  for (const auto& [shape, bytes] : kFound) {
    EXPECT_EQ(attention_forward_workspace_bytes(shape, on_gpu(0)), 0) << describe(shape);
    EXPECT_EQ(attention_backward_workspace_bytes(shape, on_gpu(0)), bytes) << describe(shape);
    const int graphs = seen().graphs;
    EXPECT_EQ(attention_backward_workspace_bytes(shape, on_gpu(0)), bytes);
    EXPECT_EQ(seen().graphs, graphs) << "it was asked before";
    EXPECT_EQ(attention_backward_workspace_bytes(shape, on_gpu(1)), bytes) << "another of the same kind";
    EXPECT_EQ(seen().graphs, graphs + 1);
    const Target described = {1, DeviceType::cuda};
    EXPECT_EQ(attention_backward_workspace_bytes(shape, described),
              cuda::cudnn_slice_bytes(shape, cuda::whole(shape)));
    EXPECT_GT(attention_backward_workspace_bytes(shape, described), bytes);
    device::make_current(0);
  }
}

// What has been asked for on a GPU is made there when libraries are opened, and what was not is not.
TEST(CudnnAttention, TheGpuThatIsAskedBecomesCurrentAndIsOpened) {
  const AttentionInputs in(bf16_shape(2, 28, 4, 2, 16), 9);
  const AttentionOutputs expected = attend(in);
  std::thread([&] {
    attention_forward_workspace_bytes(in.shape, on_gpu(5));
    attention_backward_workspace_bytes(in.shape, on_gpu(5));
    EXPECT_EQ(on_current_gpu().gpu, 5);
    int graphs = seen().graphs;
    cuda::open_cudnn(5);
    EXPECT_EQ(seen().graphs, graphs + 2);
    graphs = seen().graphs;
    cuda::open_cudnn(5);
    cuda::open_cudnn(6);
    EXPECT_EQ(attend(in), expected);
    EXPECT_EQ(seen().graphs, graphs);
  }).join();
}

TEST(CudnnAttention, RunsInThatWorkspaceAndNotInLess) {
  const AttentionInputs in(bf16_shape(2, 24, 4, 2, 16), 9);
  const AttentionShape& s = in.shape;
  const GpuTensor qkv(in.qkv), like_output(in.output_gradient), statistics(Tensor(DType::fp32, 2 * 4 * 24)),
      gradient(Tensor(DType::bf16, in.qkv.numel()));
  const std::int64_t bytes = attention_backward_workspace_bytes(s, on_gpu(0));
  for (const std::int64_t given : {bytes - 1, bytes}) {
    const GpuContext context(given);
    const auto run = [&] {
      attention_backward(context, s,
                         {.qkv = qkv.data(),
                          .output = like_output.data(),
                          .log_sum_exp = statistics.floats(),
                          .output_gradient = like_output.data(),
                          .qkv_gradient = gradient.data()});
    };
    if (given < bytes)
      EXPECT_THROW(run(), UsageError);
    else
      run();
    context.finish();
  }
}

}  // namespace
}  // namespace tessera::kernels::testing
