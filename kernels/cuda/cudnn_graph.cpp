#include "kernels/cuda/cudnn_graph.h"

#define CUDNN_FRONTEND_SKIP_JSON_LIB
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#include <cudnn_frontend.h>

#include <cmath>
#include <unordered_map>
#include <vector>

#include "src/device/activity.h"
#include "src/device/cudnn_library.h"
#include "tessera/error.h"

// The library's headers call through what is found here.
namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}

namespace tessera::kernels::cuda {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Graph;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

std::vector<std::int64_t> list(const std::array<std::int64_t, 4>& numbers) {
  return {numbers.begin(), numbers.end()};
}

void place(fe::graph::Tensor_attributes& tensor, CudnnTensor name, const CudnnLayout& layout,
           fe::DataType_t type) {
  tensor.set_uid(name).set_dim(list(layout.dims)).set_stride(list(layout.strides)).set_data_type(type);
}

Tensor input(Graph& graph, CudnnTensor name, const CudnnLayout& layout,
             fe::DataType_t type = fe::DataType_t::BFLOAT16) {
  fe::graph::Tensor_attributes tensor;
  place(tensor, name, layout, type);
  return graph.tensor(tensor);
}

void output(const Tensor& tensor, CudnnTensor name, const CudnnLayout& layout,
            fe::DataType_t type = fe::DataType_t::BFLOAT16) {
  place(*tensor, name, layout, type);
  tensor->set_output(true);
}

void load_library() {
  static const bool loaded = [] { return (fe::cudnn_dlhandle = device::cudnn_library()) != nullptr; }();
  static_cast<void>(loaded);
}

void check_status(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  const std::string activity = device::Activity::current();
  throw EnvironmentError((activity.empty() ? "" : activity + ": ") + "attention by cuDNN: " + call +
                         " failed: " + fe::detail::get_error_string(status));
}

std::string describe(const AttentionShape& s) {
  return "attention by cuDNN, " + std::to_string(s.batch) + " x " + std::to_string(s.sequence) + ", " +
         std::to_string(s.heads) + " heads of " + std::to_string(s.head_channels()) + " channels, " +
         std::to_string(s.kv_heads_or_heads()) + " of keys and values";
}

Graph describe_attention(const AttentionShape& shape, const AttentionSlice& slice, bool backward,
                         int capability) {
  const CudnnLayouts layouts = cudnn_layouts(shape, slice);
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_channels())));
  Graph graph;
  graph.set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT)
      .set_sm_version(capability)
      // Nothing here is captured. Else every run of a plan that was compiled asks whether it is, by a shared
      // libcudart, which the loader need not find: this one's is linked. (The frontend looks for one all the
      // same, at the first run, and does without it.)
      .set_cuda_graph_retention(fe::CudaGraphRetention_t::NONE);
  const Tensor query = input(graph, kQuery, layouts.query), key = input(graph, kKey, layouts.key_value),
               value = input(graph, kValue, layouts.key_value);
  if (backward) {
    const auto [of_query, of_key, of_value] =
        graph.sdpa_backward(query, key, value, input(graph, kOutput, layouts.output),
                            input(graph, kOutputGradient, layouts.output),
                            input(graph, kStatistics, layouts.statistics, fe::DataType_t::FLOAT),
                            fe::graph::SDPA_backward_attributes()
                                .set_name("attention_backward")
                                .set_attn_scale(scale)
                                .set_causal_mask(true)
                                .set_deterministic_algorithm(true));
    output(of_query, kQueryGradient, layouts.query);
    output(of_key, kKeyGradient, layouts.key_value);
    output(of_value, kValueGradient, layouts.key_value);
  } else {
    const auto [result, statistics] = graph.sdpa(query, key, value,
                                                 fe::graph::SDPA_attributes()
                                                     .set_name("attention_forward")
                                                     .set_generate_stats(true)
                                                     .set_attn_scale(scale)
                                                     .set_causal_mask(true));
    output(result, kOutput, layouts.output);
    output(statistics, kStatistics, layouts.statistics, fe::DataType_t::FLOAT);
  }
  return graph;
}

// Returns the bytes that the chosen plan needs.
std::int64_t compile_attention(Graph& graph, cudnnHandle_t handle, const AttentionShape& shape,
                               std::int64_t workspace_bytes) {
  const auto check = [&](fe::error_t error, const char* what) {
    if (error.is_bad())
      throw UnsupportedError(describe(shape) + ", in " + std::to_string(workspace_bytes) +
                             " bytes of workspace: " + what + " failed: " + error.get_message() +
                             "; build with -DTESSERA_WITH_CUDNN=OFF for Tessera's own kernels");
  };
  check(graph.validate(), "validate");
  check(graph.build_operation_graph(handle), "build_operation_graph");
  check(graph.create_execution_plans({fe::HeurMode_t::A}), "create_execution_plans");
  graph.deselect_numeric_notes({fe::NumericalNote_t::NONDETERMINISTIC});
  graph.deselect_workspace_greater_than(workspace_bytes);
  check(graph.check_support(), "check_support");
  check(graph.build_plans(), "build_plans");
  std::int64_t needed_bytes = 0;
  check(graph.get_workspace_size(needed_bytes), "get_workspace_size");
  if (needed_bytes > workspace_bytes)
    throw UnsupportedError(describe(shape) + ": cuDNN's plan needs " + std::to_string(needed_bytes) +
                           " bytes of workspace, planned are " + std::to_string(workspace_bytes) +
                           "; build with -DTESSERA_WITH_CUDNN=OFF for Tessera's own kernels");
  return needed_bytes;
}

}  // namespace

CudnnHandle::CudnnHandle() {
  load_library();
  cudnnHandle_t handle = nullptr;
  check_status(fe::detail::create_handle(&handle), "cudnnCreate");
  handle_ = handle;
}

CudnnHandle::~CudnnHandle() { fe::detail::destroy_handle(static_cast<cudnnHandle_t>(handle_)); }

void CudnnHandle::set_stream(void* stream) {
  check_status(fe::detail::set_stream(static_cast<cudnnHandle_t>(handle_), static_cast<cudaStream_t>(stream)),
               "cudnnSetStream");
}

struct AttentionGraph::Compiled {
  Graph graph;
  cudnnHandle_t handle = nullptr;
  std::int64_t workspace_bytes = 0;
  std::unordered_map<std::int64_t, void*> tensors = {};  // kept, so that a run allocates none
};

AttentionGraph::AttentionGraph(const AttentionShape& shape, const AttentionSlice& slice, bool backward,
                               const CudnnTarget& target, std::int64_t workspace_bytes) {
  load_library();
  compiled_ = std::make_unique<Compiled>(
      Compiled{.graph = describe_attention(shape, slice, backward, target.capability)});
  if (target.handle != nullptr) {
    compiled_->handle = static_cast<cudnnHandle_t>(target.handle->handle_);
  } else {
    const auto gpu = std::make_shared<fe::DeviceProperties>();
    fe::error_t error = gpu->deserialize({target.description.begin(), target.description.end()});
    if (error.is_bad())
      throw UsageError("no description of a GPU that cuDNN reads: " + error.get_message() + ": " +
                       target.description);
    compiled_->graph.set_device_properties(gpu);
  }
  compiled_->workspace_bytes = compile_attention(compiled_->graph, compiled_->handle, shape, workspace_bytes);
}

AttentionGraph::~AttentionGraph() = default;
AttentionGraph::AttentionGraph(AttentionGraph&&) noexcept = default;
AttentionGraph& AttentionGraph::operator=(AttentionGraph&&) noexcept = default;

std::int64_t AttentionGraph::workspace_bytes() const { return compiled_->workspace_bytes; }

void AttentionGraph::set(CudnnTensor name, const void* tensor) {
  compiled_->tensors[name] = const_cast<void*>(tensor);
}

void AttentionGraph::run(void* workspace) {
  fe::error_t error = compiled_->graph.execute(compiled_->handle, compiled_->tensors, workspace);
  if (error.is_bad()) throw EnvironmentError("attention by cuDNN: execute failed: " + error.get_message());
}

}  // namespace tessera::kernels::cuda
