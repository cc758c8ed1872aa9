#include "kernels/cuda/cudnn_graph.h"

#include <cmath>
#include <string>
#include <vector>

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

std::string describe(const AttentionShape& s) {
  return "attention by cuDNN, " + std::to_string(s.batch) + " x " + std::to_string(s.sequence) + ", " +
         std::to_string(s.heads) + " heads of " + std::to_string(s.head_channels()) + " channels, " +
         std::to_string(s.kv_heads_or_heads()) + " of keys and values";
}

}  // namespace

std::unique_ptr<Graph> describe_attention(const AttentionShape& shape, const AttentionSlice& slice,
                                          bool backward, int capability) {
  const CudnnLayouts layouts = cudnn_layouts(shape, slice);
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_channels())));
  auto graph = std::make_unique<Graph>();
  graph->set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT)
      .set_sm_version(capability);
  const Tensor query = input(*graph, kQuery, layouts.query), key = input(*graph, kKey, layouts.key_value),
               value = input(*graph, kValue, layouts.key_value);
  if (backward) {
    const auto [of_query, of_key, of_value] =
        graph->sdpa_backward(query, key, value, input(*graph, kOutput, layouts.output),
                             input(*graph, kOutputGradient, layouts.output),
                             input(*graph, kStatistics, layouts.statistics, fe::DataType_t::FLOAT),
                             fe::graph::SDPA_backward_attributes()
                                 .set_name("attention_backward")
                                 .set_attn_scale(scale)
                                 .set_causal_mask(true)
                                 .set_deterministic_algorithm(true));
    output(of_query, kQueryGradient, layouts.query);
    output(of_key, kKeyGradient, layouts.key_value);
    output(of_value, kValueGradient, layouts.key_value);
  } else {
    const auto [result, statistics] = graph->sdpa(query, key, value,
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

void compile_attention(Graph& graph, cudnnHandle_t handle, const AttentionShape& shape,
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
}

}  // namespace tessera::kernels::cuda
