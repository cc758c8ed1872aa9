// Attention on an emulated GPU as tests of cuDNN's path call it: tensors between guards, outputs poisoned, a
// workspace of exactly the bytes that were asked for.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cuda/cudnn_attention.h"
#include "src/device/cuda_check.h"
#include "tests/kernels/attention_reference.h"

namespace tessera::kernels::testing {

// Memory of the current GPU that begins as a copy of a tensor, between two guards.
class GpuTensor {
 public:
  explicit GpuTensor(const Tensor& tensor)
      : tensor_(tensor), bytes_(static_cast<std::size_t>(tensor.numel() * bytes_of(tensor.type()))) {
    std::vector<unsigned char> all(bytes_ + 2 * kGuard, kPoison);
    std::memcpy(all.data() + kGuard, tensor.data(), bytes_);
    device::check_cuda(cudaMalloc(&memory_, all.size()), "cudaMalloc");
    device::check_cuda(cudaMemcpy(memory_, all.data(), all.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  ~GpuTensor() { device::ignore_cuda(cudaFree(memory_)); }
  GpuTensor(const GpuTensor&) = delete;
  GpuTensor& operator=(const GpuTensor&) = delete;

  void* data() const { return static_cast<unsigned char*>(memory_) + kGuard; }
  float* floats() const { return static_cast<float*>(data()); }
  // What it has become. Nothing may have been written around it.
  Tensor take() const {
    std::vector<unsigned char> all(bytes_ + 2 * kGuard);
    device::check_cuda(cudaMemcpy(all.data(), memory_, all.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    const auto poisoned = [](unsigned char byte) { return byte == kPoison; };
    EXPECT_TRUE(std::all_of(all.begin(), all.begin() + kGuard, poisoned)) << "written before a tensor";
    EXPECT_TRUE(std::all_of(all.end() - kGuard, all.end(), poisoned)) << "written behind a tensor";
    Tensor taken = tensor_;
    std::memcpy(taken.data(), all.data() + kGuard, bytes_);
    return taken;
  }

 private:
  static constexpr std::ptrdiff_t kGuard = 256;
  static constexpr unsigned char kPoison = 0xff;

  Tensor tensor_;
  std::size_t bytes_;
  void* memory_ = nullptr;
};

// A stream of the current GPU, and a workspace.
class GpuContext {
 public:
  explicit GpuContext(std::int64_t workspace_bytes)
      : workspace_(Tensor(DType::bf16, (workspace_bytes + 1) / 2)), bytes_(workspace_bytes) {
    device::check_cuda(cudaStreamCreate(&stream_), "cudaStreamCreate");
  }
  ~GpuContext() { device::ignore_cuda(cudaStreamDestroy(stream_)); }
  GpuContext(const GpuContext&) = delete;
  GpuContext& operator=(const GpuContext&) = delete;

  operator ComputeContext() const {
    return {.workspace = {.data = workspace_.data(), .bytes = bytes_},
            .device = DeviceType::cuda,
            .stream = stream_};
  }
  cudaStream_t stream() const { return stream_; }
  void finish() const {
    device::check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    workspace_.take();
  }

 private:
  GpuTensor workspace_;
  std::int64_t bytes_;
  cudaStream_t stream_ = nullptr;
};

inline Target on_gpu(int ordinal) { return {1, DeviceType::cuda, 1, 1, ordinal}; }
inline Target on_current_gpu() {
  int ordinal = 0;
  device::check_cuda(cudaGetDevice(&ordinal), "cudaGetDevice");
  return on_gpu(ordinal);
}

struct AttentionInputs {
  AttentionShape shape;
  Tensor qkv, output_gradient;

  AttentionInputs(const AttentionShape& of, std::uint64_t seed)
      : shape(of), qkv(DType::bf16, 0), output_gradient(DType::bf16, 0) {
    Random random(seed);
    qkv = random.tensor(DType::bf16, shape.batch * shape.sequence * shape.qkv_channels());
    output_gradient = random.tensor(DType::bf16, shape.batch * shape.sequence * shape.channels);
  }
};

struct AttentionOutputs {
  Tensor output, log_sum_exp, gradient;
  bool operator==(const AttentionOutputs&) const = default;
};

// By the public functions, or by cuDNN's path in slices of the caller's.
inline AttentionOutputs attend(const AttentionInputs& in, const cuda::AttentionSlice* slice = nullptr) {
  const AttentionShape& s = in.shape;
  const GpuTensor qkv(in.qkv), output_gradient(in.output_gradient);
  const GpuTensor output(Tensor(DType::bf16, in.output_gradient.numel())),
      log_sum_exp(Tensor(DType::fp32, s.batch * s.heads * s.sequence)),
      gradient(Tensor(DType::bf16, in.qkv.numel()));
  const GpuContext forward(attention_forward_workspace_bytes(s, on_current_gpu()));
  attention_forward(forward, s, qkv.data(), output.data(), log_sum_exp.floats());
  forward.finish();
  const AttentionBackward arguments = {.qkv = qkv.data(),
                                       .output = output.data(),
                                       .log_sum_exp = log_sum_exp.floats(),
                                       .output_gradient = output_gradient.data(),
                                       .qkv_gradient = gradient.data()};
  const GpuContext backward(slice == nullptr ? attention_backward_workspace_bytes(s, on_current_gpu())
                                             : cuda::cudnn_slice_bytes(s, *slice));
  if (slice == nullptr)
    attention_backward(backward, s, arguments);
  else
    cuda::cudnn_backward(backward, s, *slice, arguments);
  backward.finish();
  EXPECT_EQ(qkv.take(), in.qkv) << "an input was written";
  return {output.take(), log_sum_exp.take(), gradient.take()};
}

}  // namespace tessera::kernels::testing
