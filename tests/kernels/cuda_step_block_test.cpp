// What a kernel reads in a StepBlock on the device gives the bits that the same values give as arguments.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "kernels/step_block.h"
#include "optim/update.h"
#include "src/device/cuda_check.h"
#include "tessera/machine.h"
#include "tessera/philox.h"
#include "tests/kernels/support.h"

namespace tessera::kernels::testing {
namespace {

using device::check_cuda;

// Tensors on the device, and what is in them.
class Memory {
 public:
  Memory() { check_cuda(cudaStreamCreate(&stream_), "cudaStreamCreate"); }
  ~Memory() {
    for (const Piece& piece : pieces_) device::ignore_cuda(cudaFree(piece.data));
    device::ignore_cuda(cudaStreamDestroy(stream_));
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  template <class T>
  T* put(const std::vector<T>& values) {
    return static_cast<T*>(add(values.data(), values.size() * sizeof(T)));
  }
  void* put(const Tensor& tensor) {
    return add(tensor.data(), static_cast<std::size_t>(tensor.numel() * bytes_of(tensor.type())));
  }
  ComputeContext context(std::int64_t workspace_bytes = 0) {
    const std::vector<unsigned char> poison(static_cast<std::size_t>(workspace_bytes), 0xff);
    return {.workspace = {.data = put(poison), .bytes = workspace_bytes},
            .device = DeviceType::cuda,
            .stream = stream_};
  }
  void* stream() { return stream_; }
  // Of everything that was put here, but for the last `but` pieces.
  std::vector<unsigned char> take() {
    check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    std::vector<unsigned char> all;
    for (const Piece& piece : pieces_) {
      std::vector<unsigned char> bytes(piece.bytes);
      if (piece.bytes > 0)
        check_cuda(cudaMemcpy(bytes.data(), piece.data, piece.bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    return all;
  }

 private:
  struct Piece {
    void* data = nullptr;
    std::size_t bytes = 0;
  };
  void* add(const void* from, std::size_t bytes) {
    Piece piece{.bytes = bytes};
    check_cuda(cudaMalloc(&piece.data, bytes + 1), "cudaMalloc");
    if (bytes > 0) check_cuda(cudaMemcpy(piece.data, from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    pieces_.push_back(piece);
    return piece.data;
  }

  cudaStream_t stream_ = nullptr;
  std::vector<Piece> pieces_;
};

constexpr std::uint64_t kSeed = 0x123456789abcdefULL, kStream = 77;
constexpr std::int64_t kUpdates = (std::int64_t{1} << 32) + 5;

class CudaStepBlock : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const CudaMachine machine = read_cuda_machine(); !machine.unusable.empty())
      GTEST_SKIP() << "no GPU: " << machine.unusable;
  }

  // Runs with arguments, then with wrong arguments and a block that has the right ones; and with wrong ones
  // alone, so that what is compared depends on them.
  void compare(const std::function<void(Memory&, const StepBlock*, bool right)>& run) {
    StepBlock block;
    block.begin = {.updates = kUpdates, .loss_scale = 8.0f};
    block.update.step = 12;
    fill(block);
    const auto bytes_of_run = [&](bool by_block, bool right) {
      Memory memory;
      const StepBlock* const given = memory.put(std::vector<StepBlock>{block});
      run(memory, by_block ? given : nullptr, right);
      return memory.take();
    };
    const std::vector<unsigned char> by_arguments = bytes_of_run(false, true);
    EXPECT_EQ(bytes_of_run(true, false), by_arguments);
    EXPECT_NE(bytes_of_run(false, false), by_arguments);
  }
  std::function<void(StepBlock&)> fill = [](StepBlock&) {};
};

Dropout dropout_of(const StepBlock* block, bool right) {
  Dropout dropout = {.threshold = 20000,
                     .key = random_key(kSeed, kStream, kUpdates + (right ? 0 : 1)),
                     .matrix = 2,
                     .first_sequence = 3};
  if (block != nullptr) dropout.key_at = {.seed = kSeed, .stream = kStream, .updates = &block->begin.updates};
  return dropout;
}

Tensor random_tensor(DType type, std::int64_t numel, unsigned seed) {
  std::mt19937 draw(seed);
  std::normal_distribution<double> normal;
  Tensor tensor(type, numel);
  for (std::int64_t i = 0; i < numel; ++i) tensor.set(i, normal(draw));
  return tensor;
}

TEST_F(CudaStepBlock, KeysOfDropout) {
  for (const DType type : {DType::fp32, DType::bf16})
    compare([&](Memory& memory, const StepBlock* block, bool right) {
      const DropoutShape shape = {.batch = 2, .sequence = 9, .channels = 67, .type = type};
      const std::int64_t numel = shape.rows_or_all() * shape.channels;
      dropout(memory.context(), shape, dropout_of(block, right), memory.put(random_tensor(type, numel, 1)),
              memory.put(Tensor(type, numel)));
    });
}

TEST_F(CudaStepBlock, KeysOfAttention) {
  compare([&](Memory& memory, const StepBlock* block, bool right) {
    const AttentionShape shape = {.batch = 2,
                                  .sequence = 33,
                                  .channels = 24,
                                  .heads = 2,
                                  .kv_heads = 1,
                                  .dropout = dropout_of(block, right)};
    const std::int64_t rows = shape.batch * shape.sequence;
    const void* const qkv = memory.put(random_tensor(DType::fp32, rows * shape.qkv_channels(), 1));
    void* const output = memory.put(Tensor(DType::fp32, rows * shape.channels));
    auto* const sums = static_cast<float*>(memory.put(Tensor(DType::fp32, rows * shape.heads)));
    const Target target{1, DeviceType::cuda};
    attention_forward(memory.context(attention_forward_workspace_bytes(shape, target)), shape, qkv, output,
                      sums);
    attention_backward(memory.context(attention_backward_workspace_bytes(shape, target)), shape,
                       {.qkv = qkv,
                        .output = output,
                        .log_sum_exp = sums,
                        .output_gradient = memory.put(random_tensor(DType::fp32, rows * shape.channels, 2)),
                        .qkv_gradient = memory.put(Tensor(DType::fp32, rows * shape.qkv_channels()))});
  });
}

TEST_F(CudaStepBlock, ScalesOfTheLoss) {
  for (const std::int64_t vocabulary : {101, 20011})
    compare([&](Memory& memory, const StepBlock* block, bool right) {
      const CrossEntropyShape shape = {.rows = 5, .channels = 8, .vocabulary = vocabulary};
      cross_entropy_forward_backward(
          memory.context(cross_entropy_workspace_bytes(shape, {1, DeviceType::cuda})), shape,
          {.input = memory.put(random_tensor(DType::fp32, shape.rows * shape.channels, 1)),
           .weight = memory.put(random_tensor(DType::fp32, vocabulary * shape.channels, 2)),
           .targets = memory.put(std::vector<std::int32_t>{3, -1, 99, 0, 7}),
           .scale = right ? 8.0f : 4.0f,
           .scale_at = block == nullptr ? nullptr : &block->begin.loss_scale,
           .losses = static_cast<float*>(memory.put(Tensor(DType::fp32, shape.rows))),
           .total = memory.put(std::vector<LossTotal>(1)),
           .input_gradient = memory.put(Tensor(DType::fp32, shape.rows * shape.channels)),
           .weight_gradient = memory.put(Tensor(DType::fp32, vocabulary * shape.channels))});
    });
  compare([&](Memory& memory, const StepBlock* block, bool right) {
    const SoftmaxShape shape = {.rows = 3, .columns = 50, .vocabulary = 50};
    const std::int32_t* const targets = memory.put(std::vector<std::int32_t>{3, -1, 49});
    const std::int64_t numel = shape.rows * logits_stride(shape, DeviceType::cuda);
    auto* const logits = static_cast<float*>(memory.put(random_tensor(DType::fp32, numel, 1)));
    auto* const statistics = memory.put(std::vector<SoftmaxStatistics>(3));
    softmax_statistics(memory.context(), shape, logits, targets, statistics);
    softmax_gradients(memory.context(), shape,
                      {.statistics = statistics,
                       .targets = targets,
                       .scale = right ? 8.0f : 4.0f,
                       .scale_at = block == nullptr ? nullptr : &block->begin.loss_scale,
                       .logits = logits,
                       .losses = static_cast<float*>(memory.put(Tensor(DType::fp32, shape.rows)))});
  });
}

// Every rule, moments in both types, groups in runs and of all elements, and parameters of a block of tensor
// ranks with rounding keys of their own.
TEST_F(CudaStepBlock, CoefficientsOfUpdates) {
  const OptimizerOptions rules[] = {AdamWOptions{.weight_decay = 0.1}, AdamOptions{.weight_decay = 0.1},
                                    SgdOptions{.momentum = 0.9, .nesterov = true, .weight_decay = 0.1},
                                    LionOptions{.weight_decay = 0.1}};
  const std::vector<UpdateRun> runs = {
      {.numel = 128, .group = 1}, {.numel = 64, .group = 0}, {.numel = 40, .group = 2}};
  const std::vector<UpdateRun> rounded = {{.numel = 64, .group = 1, .rounding = UpdateRun::Rounding{9, 3}},
                                          {.numel = 168, .group = 2}};
  for (const OptimizerOptions& options : rules)
    for (const DType moments : {DType::fp32, DType::bf16})
      for (const std::vector<UpdateRun>* of :
           {moments == DType::fp32 ? &runs : &rounded, static_cast<const std::vector<UpdateRun>*>(nullptr)}) {
        Optimizer optimizer{.options = options,
                            .groups = {{.name = "a"},
                                       {.name = "b", .weight_decay = 0.0},
                                       {.name = "c", .learning_rate_factor = 3.0}},
                            .moment_type = moments};
        fill = [&](StepBlock& block) { ASSERT_TRUE(write_update(optimizer, 0.01, 12, block)); };
        compare([&](Memory& memory, const StepBlock* block, bool right) {
          constexpr std::int64_t kNumel = 232;
          UpdateArguments arguments = {
              .numel = kNumel,
              .gradient = memory.put(random_tensor(DType::fp32, kNumel, 1)),
              .master = static_cast<float*>(memory.put(random_tensor(DType::fp32, kNumel, 2))),
              .parameter_type = DType::bf16,
              .parameter = memory.put(Tensor(DType::bf16, kNumel)),
              .group = 1,
              .learning_rate = right ? 0.01 : 0.02,
              .step = right ? 12 : 13,
              .gradient_scale = 0.5,
              .rounding_key = 5,
              .first = 640,
              .block = block,
              .device = DeviceType::cuda,
              .stream = memory.stream()};
          if (of != nullptr) arguments.runs = *of;
          for (int k = 0; k < optimizer.moments(); ++k) {
            Tensor moment = random_tensor(moments, kNumel, 3);
            for (std::int64_t i = 0; i < kNumel; ++i) moment.set(i, moment.get(i) * moment.get(i));
            arguments.moments[static_cast<std::size_t>(k)] = memory.put(moment);
          }
          update(optimizer, arguments);
        });
      }
}

TEST(StepBlock, HasNoRoomForMoreGroups) {
  Optimizer optimizer;
  optimizer.groups.resize(kMostStepGroups);
  StepBlock block;
  EXPECT_TRUE(write_update(optimizer, 0.01, 3, block));
  EXPECT_EQ(block.update.step, 3);
  optimizer.groups.emplace_back();
  EXPECT_FALSE(write_update(optimizer, 0.01, 4, block));
  EXPECT_EQ(block.update.step, 3);
}

TEST(StepBlock, KeysAreThoseOfPhilox) {
  EXPECT_EQ(key_of(kSeed, kStream, kUpdates), random_key(kSeed, kStream, kUpdates));
  EXPECT_EQ(StepKey{}.get(42), 42u);
  EXPECT_EQ((StepKey{kSeed, kStream, &kUpdates}.get(42)), random_key(kSeed, kStream, kUpdates));
}

}  // namespace
}  // namespace tessera::kernels::testing
