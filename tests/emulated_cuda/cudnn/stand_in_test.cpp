// The stand-in for cuDNN itself: that it computes what is described to it, whatever that is, and refuses what
// cuDNN refuses, by the same kind of status.
#include <cudnn_graph.h>
#include <gtest/gtest.h>

#include "tests/emulated_cuda/cudnn/gpu_attention.h"
#include "tests/emulated_cuda/cudnn/stand_in.h"

namespace tessera::kernels::testing {
namespace {

using Extents = std::vector<std::int64_t>;
using Descriptor = cudnnBackendDescriptor_t;

// Descriptors of a test, destroyed at its end.
class CudnnStandIn : public ::testing::Test {
 protected:
  CudnnStandIn() {
    device::make_current(0);
    EXPECT_EQ(cudnnCreate(&handle_), CUDNN_STATUS_SUCCESS);
  }
  ~CudnnStandIn() override {
    for (const Descriptor descriptor : made_) cudnnBackendDestroyDescriptor(descriptor);
    cudnnDestroy(handle_);
  }

  Descriptor make(cudnnBackendDescriptorType_t type) {
    Descriptor descriptor = nullptr;
    EXPECT_EQ(cudnnBackendCreateDescriptor(type, &descriptor), CUDNN_STATUS_SUCCESS);
    made_.push_back(descriptor);
    return descriptor;
  }
  static void set(Descriptor d, cudnnBackendAttributeName_t name, const Extents& values) {
    EXPECT_EQ(cudnnBackendSetAttribute(d, name, CUDNN_TYPE_INT64, static_cast<std::int64_t>(values.size()),
                                       values.data()),
              CUDNN_STATUS_SUCCESS);
  }
  template <class T>
  static void set(Descriptor d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, T value) {
    EXPECT_EQ(cudnnBackendSetAttribute(d, name, type, 1, &value), CUDNN_STATUS_SUCCESS);
  }
  static void set_parts(Descriptor d, cudnnBackendAttributeName_t name,
                        const std::vector<Descriptor>& parts) {
    EXPECT_EQ(cudnnBackendSetAttribute(d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                       static_cast<std::int64_t>(parts.size()), parts.data()),
              CUDNN_STATUS_SUCCESS);
  }
  static Descriptor finalized(Descriptor d) {
    EXPECT_EQ(cudnnBackendFinalize(d), CUDNN_STATUS_SUCCESS) << reason();
    return d;
  }
  static std::string reason() {
    char text[256];
    cudnnGetLastErrorString(text, sizeof text);
    return text;
  }

  enum Kind { memory, by_value, within };
  // Not finalized.
  Descriptor open_tensor(std::int64_t uid, const Extents& dims, const Extents& strides,
                         cudnnDataType_t type = CUDNN_DATA_BFLOAT16, Kind kind = memory) {
    const Descriptor d = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, {uid});
    set(d, CUDNN_ATTR_TENSOR_DIMENSIONS, dims);
    set(d, CUDNN_ATTR_TENSOR_STRIDES, strides);
    set(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, {16});
    set(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type);
    set(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, kind == within);
    set(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, kind == by_value);
    return d;
  }
  Descriptor tensor(std::int64_t uid, const Extents& dims, const Extents& strides,
                    cudnnDataType_t type = CUDNN_DATA_BFLOAT16, Kind kind = memory) {
    return finalized(open_tensor(uid, dims, strides, type, kind));
  }
  Descriptor scalar(std::int64_t uid) {
    return tensor(uid, {1, 1, 1, 1}, {1, 1, 1, 1}, CUDNN_DATA_FLOAT, by_value);
  }
  Descriptor open_matmul(Descriptor a, Descriptor b, Descriptor c) {
    const Descriptor how = make(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    set(how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    const Descriptor d = make(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_parts(d, CUDNN_ATTR_OPERATION_MATMUL_ADESC, std::vector{a});
    set_parts(d, CUDNN_ATTR_OPERATION_MATMUL_BDESC, std::vector{b});
    set_parts(d, CUDNN_ATTR_OPERATION_MATMUL_CDESC, std::vector{c});
    set_parts(d, CUDNN_ATTR_OPERATION_MATMUL_DESC, std::vector{finalized(how)});
    return d;
  }
  Descriptor open_pointwise(cudnnPointwiseMode_t mode, const std::vector<Descriptor>& inputs, Descriptor y,
                            std::int64_t axis = -1) {
    const Descriptor how = make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode);
    set(how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    if (axis >= 0) set(how, CUDNN_ATTR_POINTWISE_AXIS, {axis});
    const Descriptor d = make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_parts(d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, std::vector{finalized(how)});
    constexpr cudnnBackendAttributeName_t kInputs[] = {CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
                                                       CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                                                       CUDNN_ATTR_OPERATION_POINTWISE_TDESC};
    for (std::size_t i = 0; i < inputs.size(); ++i) set_parts(d, kInputs[i], std::vector{inputs[i]});
    set_parts(d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, std::vector{y});
    return d;
  }
  Descriptor open_graph(const std::vector<Descriptor>& operations) {
    const Descriptor d = make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(d, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle_);
    set_parts(d, CUDNN_ATTR_OPERATIONGRAPH_OPS, operations);
    return d;
  }
  Descriptor open_heuristics(Descriptor graph) {
    const Descriptor d = make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_parts(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, std::vector{graph});
    set(d, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, CUDNN_HEUR_MODE_A);
    return d;
  }
  // Of the engine that heuristics recommend at a place; not finalized.
  Descriptor open_plan(Descriptor graph, std::size_t place) {
    const Descriptor heuristics = finalized(open_heuristics(graph));
    std::vector<Descriptor> results;
    for (int i = 0; i < 3; ++i) results.push_back(make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
    std::int64_t count = 0;
    EXPECT_EQ(cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                       CUDNN_TYPE_BACKEND_DESCRIPTOR, 3, &count, results.data()),
              CUDNN_STATUS_SUCCESS);
    EXPECT_EQ(count, 3);
    const Descriptor plan = make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set_parts(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, std::vector{results[place]});
    return plan;
  }
  Descriptor open_pack(const Extents& uids, const std::vector<const void*>& pointers, const void* workspace) {
    const Descriptor d = make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    set(d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, uids);
    EXPECT_EQ(cudnnBackendSetAttribute(d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
                                       static_cast<std::int64_t>(pointers.size()), pointers.data()),
              CUDNN_STATUS_SUCCESS);
    if (workspace != nullptr)
      set(d, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, const_cast<void*>(workspace));
    return d;
  }

  cudnnHandle_t handle_ = nullptr;

 private:
  std::vector<Descriptor> made_;
};

TEST_F(CudnnStandIn, RefusesAttributesThatAreWrong) {
  const Descriptor d = open_tensor(1, {1, 1, 8, 8}, {64, 64, 8, 1});
  const std::int64_t two[2] = {1, 2};
  const auto set_to = [&](cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                          std::int64_t count, const void* values) {
    return cudnnBackendSetAttribute(d, name, type, count, values);
  };
  EXPECT_EQ(set_to(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_FLOAT, 2, two),
            CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE);
  EXPECT_EQ(set_to(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 2, two), CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(set_to(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, two), CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(set_to(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 2, nullptr), CUDNN_STATUS_BAD_PARAM);
  std::int64_t count = 0, read[4];
  const auto read_as = [&](cudnnBackendAttributeType_t type) {
    return cudnnBackendGetAttribute(d, CUDNN_ATTR_TENSOR_STRIDES, type, 4, &count, read);
  };
  EXPECT_EQ(read_as(CUDNN_TYPE_INT64), CUDNN_STATUS_NOT_INITIALIZED);
  finalized(d);
  EXPECT_EQ(read_as(CUDNN_TYPE_INT64), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(read[0], 64);
  EXPECT_EQ(read_as(CUDNN_TYPE_FLOAT), CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE);
  EXPECT_EQ(set_to(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, two), CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(cudnnBackendFinalize(d), CUDNN_STATUS_BAD_PARAM) << "twice";
  EXPECT_NE(reason().find("twice"), std::string::npos);
}

TEST_F(CudnnStandIn, RefusesDescriptorsThatAreNotWhole) {
  EXPECT_EQ(cudnnBackendFinalize(make(CUDNN_BACKEND_TENSOR_DESCRIPTOR)), CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(cudnnBackendFinalize(nullptr), CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
  Descriptor unknown = nullptr;
  EXPECT_EQ(cudnnBackendCreateDescriptor(CUDNN_BACKEND_RNG_DESCRIPTOR, &unknown), CUDNN_STATUS_NOT_SUPPORTED);
  const Descriptor open = open_tensor(1, {1, 1, 8, 8}, {64, 64, 8, 1});
  const Descriptor operation = make(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  const auto use = [&] {
    return cudnnBackendSetAttribute(operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC,
                                    CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &open);
  };
  EXPECT_EQ(use(), CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED);
  finalized(open);
  EXPECT_EQ(use(), CUDNN_STATUS_SUCCESS);
  Descriptor gone = nullptr;
  cudnnBackendCreateDescriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR, &gone);
  EXPECT_EQ(cudnnBackendDestroyDescriptor(gone), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(cudnnBackendDestroyDescriptor(gone), CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
  EXPECT_EQ(cudnnBackendFinalize(gone), CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
}

TEST_F(CudnnStandIn, RefusesTensorsThatCannotBe) {
  const auto refuses = [&](Descriptor d) { return cudnnBackendFinalize(d) == CUDNN_STATUS_BAD_PARAM; };
  EXPECT_TRUE(refuses(open_tensor(1, {1, 1, 8, 8}, {64, 8, 1})));
  EXPECT_TRUE(refuses(open_tensor(1, {1, 0, 8, 8}, {64, 64, 8, 1})));
  EXPECT_TRUE(refuses(open_tensor(1, {1, 1, 8, 8}, {64, 64, 8, 1}, CUDNN_DATA_FLOAT, by_value)));
  const Descriptor odd = open_tensor(1, {1, 1, 8, 8}, {64, 64, 8, 1});
  set(odd, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, {12});
  EXPECT_TRUE(refuses(odd));
}

TEST_F(CudnnStandIn, RefusesOperationsWhoseShapesDiffer) {
  const auto plain = [&](std::int64_t uid, std::int64_t heads, std::int64_t rows, std::int64_t columns) {
    return tensor(uid, {2, heads, rows, columns}, {heads * rows * columns, rows * columns, columns, 1});
  };
  const auto status = [](Descriptor d) { return cudnnBackendFinalize(d); };
  EXPECT_EQ(status(open_matmul(plain(1, 4, 8, 16), plain(2, 2, 16, 24), plain(3, 4, 8, 24))),
            CUDNN_STATUS_SUCCESS)
      << "pairs of heads share one";
  for (const Descriptor b : {plain(2, 2, 8, 24), plain(2, 3, 16, 24), plain(2, 2, 16, 32)})
    EXPECT_EQ(status(open_matmul(plain(1, 4, 8, 16), b, plain(3, 4, 8, 24))),
              CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH);
  EXPECT_EQ(status(open_pointwise(CUDNN_POINTWISE_ADD, {plain(1, 4, 8, 16), plain(2, 4, 8, 8)},
                                  plain(3, 4, 8, 16))),
            CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH);
  EXPECT_EQ(status(open_pointwise(CUDNN_POINTWISE_GEN_INDEX, {plain(1, 4, 8, 16)}, plain(3, 4, 8, 16), 4)),
            CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND);
}

TEST_F(CudnnStandIn, RefusesGraphsThatCannotBeComputed) {
  const Extents dims = {1, 1, 8, 8}, strides = {64, 64, 8, 1};
  const Descriptor x = tensor(1, dims, strides), y = tensor(2, dims, strides),
                   inner = tensor(3, dims, strides, CUDNN_DATA_FLOAT, within);
  const auto exp_of = [&](Descriptor from, Descriptor to) {
    return finalized(open_pointwise(CUDNN_POINTWISE_EXP, {from}, to));
  };
  const auto status = [&](const std::vector<Descriptor>& operations) {
    return cudnnBackendFinalize(open_graph(operations));
  };
  EXPECT_EQ(status({exp_of(inner, y), exp_of(x, inner)}), CUDNN_STATUS_SUCCESS) << "in any order";
  EXPECT_EQ(status({exp_of(inner, y)}), CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN) << "nobody makes it";
  EXPECT_EQ(status({exp_of(x, y), exp_of(x, y)}), CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES) << "made twice";
  EXPECT_EQ(status({exp_of(x, tensor(1, dims, {8, 8, 8, 1}))}), CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES)
      << "one uid, two tensors";
}

TEST_F(CudnnStandIn, HasNoEngineForWhatAttentionIsNotGiven) {
  const auto status = [&](Descriptor operation) {
    return cudnnBackendFinalize(open_heuristics(finalized(open_graph({finalized(operation)}))));
  };
  const auto product = [&](std::int64_t channels, const Extents& strides) {
    return open_matmul(tensor(1, {1, 1, 16, channels}, strides),
                       tensor(2, {1, 1, channels, 16}, {channels * 16, channels * 16, 1, channels}),
                       tensor(3, {1, 1, 16, 16}, {256, 256, 16, 1}, CUDNN_DATA_FLOAT));
  };
  EXPECT_EQ(status(product(64, {1024, 64, 64, 1})), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(status(product(12, {192, 192, 16, 1})), CUDNN_STATUS_NOT_SUPPORTED_SHAPE);
  EXPECT_EQ(status(product(136, {136 * 16, 136 * 16, 136, 1})), CUDNN_STATUS_NOT_SUPPORTED_SHAPE);
  EXPECT_EQ(status(product(64, {1024, 1024, 68, 1})), CUDNN_STATUS_NOT_SUPPORTED_LAYOUT);
  const Extents dims = {1, 1, 8, 8}, strides = {64, 64, 8, 1};
  EXPECT_EQ(
      status(open_pointwise(CUDNN_POINTWISE_TANH_FWD, {tensor(1, dims, strides)}, tensor(2, dims, strides))),
      CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN);
  EXPECT_EQ(status(open_pointwise(CUDNN_POINTWISE_ADD, {tensor(1, dims, strides)}, tensor(2, dims, strides))),
            CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN)
      << "of one operand";
}

// Reads and writes by strides, scales by a value of the host's, and is bound by uids in any order.
TEST_F(CudnnStandIn, ComputesWhatIsDescribed) {
  constexpr std::int64_t kRows = 3, kDepth = 8, kColumns = 16;
  Random random(1);
  const Tensor a = random.tensor(DType::bf16, 2 * kRows * 24),
               b = random.tensor(DType::bf16, kColumns * kDepth);
  const GpuTensor on_a(a), on_b(b), on_c(Tensor(DType::fp32, 2 * kRows * kColumns));
  const Descriptor product = tensor(4, {1, 2, kRows, kColumns}, {96, 48, 16, 1}, CUDNN_DATA_FLOAT, within);
  const Descriptor graph = finalized(open_graph(
      {finalized(open_pointwise(CUDNN_POINTWISE_MUL, {product, scalar(5)},
                                tensor(3, {1, 2, kRows, kColumns}, {96, 16, 32, 1}, CUDNN_DATA_FLOAT))),
       finalized(open_matmul(tensor(1, {1, 2, kRows, kDepth}, {144, 8, 24, 1}),
                             tensor(2, {1, 1, kDepth, kColumns}, {128, 128, 1, kDepth}), product))}));
  const Descriptor plan = finalized(open_plan(graph, 2));
  const float scale = 0.5f;
  const GpuContext context(0);
  ASSERT_EQ(cudnnSetStream(handle_, context.stream()), CUDNN_STATUS_SUCCESS);
  ASSERT_EQ(cudnnBackendExecute(
                handle_, plan,
                finalized(open_pack({5, 3, 1, 2}, {&scale, on_c.data(), on_a.data(), on_b.data()}, nullptr))),
            CUDNN_STATUS_SUCCESS)
      << reason();
  context.finish();
  const Tensor c = on_c.take();
  for (std::int64_t head = 0; head < 2; ++head)
    for (std::int64_t i = 0; i < kRows; ++i)
      for (std::int64_t j = 0; j < kColumns; ++j) {
        double sum = 0;
        for (std::int64_t k = 0; k < kDepth; ++k) sum += a.get(i * 24 + head * 8 + k) * b.get(j * kDepth + k);
        EXPECT_NEAR(c.get(head * 16 + i * 32 + j), 0.5 * sum, 1e-5) << head << " " << i << " " << j;
      }
}

TEST_F(CudnnStandIn, ReducesNeighboursAndTransposesMemory) {
  Random random(2);
  const Tensor x = random.tensor(DType::fp32, 4 * 2 * 3);
  const GpuTensor on_x(x), on_sums(Tensor(DType::fp32, 2 * 2 * 3)), on_turned(Tensor(DType::fp32, 4 * 2 * 3));
  const auto of_x = tensor(1, {1, 4, 2, 3}, {24, 6, 3, 1}, CUDNN_DATA_FLOAT);
  const Descriptor how = make(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  set(how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, CUDNN_REDUCE_TENSOR_ADD);
  set(how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  const Descriptor reduction = make(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  set_parts(reduction, CUDNN_ATTR_OPERATION_REDUCTION_DESC, std::vector{finalized(how)});
  set_parts(reduction, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, std::vector{of_x});
  set_parts(reduction, CUDNN_ATTR_OPERATION_REDUCTION_YDESC,
            std::vector{tensor(2, {1, 2, 2, 3}, {12, 6, 3, 1}, CUDNN_DATA_FLOAT)});
  const Descriptor turn = make(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  const Descriptor turned = tensor(3, {1, 4, 3, 2}, {24, 6, 1, 3}, CUDNN_DATA_FLOAT, within);
  set_parts(turn, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, std::vector{of_x});
  set_parts(turn, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, std::vector{turned});
  const Descriptor copy = open_pointwise(CUDNN_POINTWISE_IDENTITY, {turned},
                                         tensor(4, {1, 4, 3, 2}, {24, 6, 2, 1}, CUDNN_DATA_FLOAT));
  const Descriptor plan = finalized(
      open_plan(finalized(open_graph({finalized(reduction), finalized(turn), finalized(copy)})), 2));
  const GpuContext context(0);
  ASSERT_EQ(cudnnSetStream(handle_, context.stream()), CUDNN_STATUS_SUCCESS);
  ASSERT_EQ(cudnnBackendExecute(
                handle_, plan,
                finalized(open_pack({1, 2, 4}, {on_x.data(), on_sums.data(), on_turned.data()}, nullptr))),
            CUDNN_STATUS_SUCCESS)
      << reason();
  context.finish();
  const Tensor sums = on_sums.take(), result = on_turned.take();
  for (std::int64_t head = 0; head < 4; ++head)
    for (std::int64_t i = 0; i < 2; ++i)
      for (std::int64_t j = 0; j < 3; ++j) {
        EXPECT_EQ(result.get(head * 6 + j * 2 + i), x.get(head * 6 + i * 3 + j));
        const std::int64_t first = head / 2 * 2;
        EXPECT_NEAR(sums.get(head / 2 * 6 + i * 3 + j),
                    x.get(first * 6 + i * 3 + j) + x.get((first + 1) * 6 + i * 3 + j), 1e-6);
      }
}

// A graph whose right engine needs a workspace: the transpose of a virtual matrix in bf16.
class CudnnStandInRun : public CudnnStandIn {
 protected:
  CudnnStandInRun() {
    const Extents strides = {64, 64, 8, 1};
    const Descriptor inner = tensor(3, dims_, strides, CUDNN_DATA_BFLOAT16, within);
    const Descriptor turned = tensor(4, dims_, {64, 64, 1, 8}, CUDNN_DATA_BFLOAT16, within);
    const Descriptor turn = make(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_parts(turn, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, std::vector{inner});
    set_parts(turn, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, std::vector{turned});
    graph_ = finalized(open_graph(
        {finalized(open_pointwise(CUDNN_POINTWISE_NEG, {tensor(1, dims_, strides)}, inner)), finalized(turn),
         finalized(open_pointwise(CUDNN_POINTWISE_IDENTITY, {turned}, tensor(2, dims_, strides)))}));
    EXPECT_EQ(cudnnSetStream(handle_, context_.stream()), CUDNN_STATUS_SUCCESS);
  }
  cudnnStatus_t run(const Extents& uids, const std::vector<const void*>& pointers, const void* workspace) {
    return cudnnBackendExecute(handle_, finalized(open_plan(graph_, 2)),
                               finalized(open_pack(uids, pointers, workspace)));
  }

  const Extents dims_ = {1, 1, 8, 8};
  static constexpr std::int64_t kWorkspaceBytes = 64 * 64 * 2 + 128;
  const Tensor from_ = Random(3).tensor(DType::bf16, 64);
  const GpuTensor x_{from_}, y_{Tensor(DType::bf16, 64)},
      workspace_{Tensor(DType::bf16, kWorkspaceBytes / 2)};
  const GpuContext context_{0};
  Descriptor graph_ = nullptr;
};

TEST_F(CudnnStandInRun, RefusesVariantPacksThatAreNotWhole) {
  const auto shifted = static_cast<const char*>(x_.data()) + 8;
  EXPECT_EQ(run({1, 2}, {x_.data(), y_.data()}, workspace_.data()), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(run({1}, {x_.data()}, workspace_.data()), CUDNN_STATUS_BAD_PARAM) << "2 is missing";
  EXPECT_EQ(run({1, 2}, {nullptr, y_.data()}, workspace_.data()), CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
  EXPECT_EQ(run({1, 2}, {shifted, y_.data()}, workspace_.data()), CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER);
  EXPECT_EQ(run({1, 2}, {x_.data(), y_.data()}, nullptr), CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
  EXPECT_EQ(run({1, 2, 2}, {x_.data(), y_.data(), y_.data()}, workspace_.data()),
            CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES);
  EXPECT_EQ(cudnnBackendFinalize(open_pack({1, 2}, {x_.data()}, nullptr)), CUDNN_STATUS_BAD_PARAM);
  context_.finish();
  const Tensor y = y_.take();
  for (std::int64_t i = 0; i < 8; ++i)
    for (std::int64_t j = 0; j < 8; ++j) EXPECT_EQ(y.get(i * 8 + j), -from_.get(j * 8 + i));
}

TEST_F(CudnnStandInRun, RefusesPlansAndPlacesThatAreNotReady) {
  const Descriptor pack = open_pack({1, 2}, {x_.data(), y_.data()}, workspace_.data());
  const Descriptor plan = open_plan(graph_, 2);
  EXPECT_EQ(cudnnBackendExecute(handle_, plan, finalized(pack)), CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED);
  EXPECT_EQ(cudnnBackendExecute(nullptr, finalized(plan), pack), CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(cudnnBackendExecute(handle_, pack, pack), CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE);
  device::make_current(1);
  EXPECT_EQ(cudnnBackendExecute(handle_, plan, pack), CUDNN_STATUS_EXECUTION_FAILED_CUDART);
  {
    const GpuContext elsewhere(0);
    EXPECT_EQ(cudnnSetStream(handle_, elsewhere.stream()), CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH);
  }
  device::make_current(0);
  EXPECT_EQ(cudnnBackendExecute(handle_, plan, pack), CUDNN_STATUS_SUCCESS);
  context_.finish();
}

// All of the workspace becomes NaN, and not a byte behind it.
TEST_F(CudnnStandInRun, SpoilsTheWorkspaceThatItAskedFor) {
  const GpuTensor zeros(Tensor(DType::bf16, Doubles(kWorkspaceBytes / 2, 0.0)));
  ASSERT_EQ(run({1, 2}, {x_.data(), y_.data()}, zeros.data()), CUDNN_STATUS_SUCCESS);
  context_.finish();
  const Tensor left = zeros.take();
  for (std::int64_t i = 0; i < left.numel(); ++i) ASSERT_TRUE(std::isnan(left.get(i))) << i;
  EXPECT_EQ(emulated_cudnn::seen().workspace_bytes, kWorkspaceBytes);
}

// The engine that heuristics recommend first gives other bits every second time.
TEST_F(CudnnStandInRun, OneEngineIsNotDeterministic) {
  const auto result_of = [&](std::size_t place) {
    EXPECT_EQ(cudnnBackendExecute(handle_, finalized(open_plan(graph_, place)),
                                  finalized(open_pack({1, 2}, {x_.data(), y_.data()}, workspace_.data()))),
              CUDNN_STATUS_SUCCESS);
    context_.finish();
    return y_.take();
  };
  EXPECT_EQ(result_of(2), result_of(2));
  const Tensor first = result_of(0), second = result_of(0);
  EXPECT_FALSE(first == second);
}

TEST_F(CudnnStandInRun, AnOutputThatSharesMemoryWithAnInputSpoilsIt) {
  EXPECT_EQ(run({1, 2}, {x_.data(), x_.data()}, workspace_.data()), CUDNN_STATUS_SUCCESS);
  context_.finish();
  EXPECT_TRUE(std::isnan(x_.take().get(0)));
}

}  // namespace
}  // namespace tessera::kernels::testing
