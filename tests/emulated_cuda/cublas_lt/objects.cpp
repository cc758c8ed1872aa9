#include "tests/emulated_cuda/cublas_lt/objects.h"

#include <cstring>
#include <limits>

#include "tests/emulated_cuda/gpu_services.h"

namespace tessera::emulated_cuda::cublas_lt {
namespace {

// The value of an attribute, which callers hand over as bytes.
template <class Value>
Value read(const void* value, std::size_t bytes) {
  require_valid(value != nullptr, "the attribute's value is null");
  require_valid(bytes == sizeof(Value), "the attribute has " + std::to_string(sizeof(Value)) +
                                            " bytes, not " + std::to_string(bytes));
  Value result;
  std::memcpy(&result, value, sizeof(Value));
  return result;
}

cublasOperation_t read_operation(const void* value, std::size_t bytes) {
  const auto operation = read<std::int32_t>(value, bytes);
  require_valid(operation == CUBLAS_OP_N || operation == CUBLAS_OP_T,
                "the stand-in knows no operation " + std::to_string(operation));
  return static_cast<cublasOperation_t>(operation);
}

bool is_known(std::int32_t type) {
  return type == CUDA_R_32F || type == CUDA_R_16BF || type == CUDA_R_8F_E4M3;
}

cublasLtMatmulMatrixScale_t read_scale_mode(const void* value, std::size_t bytes) {
  const auto mode = read<std::int32_t>(value, bytes);
  require_valid(mode == CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F ||
                    mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0 ||
                    mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F ||
                    mode == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F,
                "the stand-in knows no mode " + std::to_string(mode) + " of scales");
  return static_cast<cublasLtMatmulMatrixScale_t>(mode);
}

cublasLtEpilogue_t read_epilogue(const void* value, std::size_t bytes) {
  const auto epilogue = read<std::uint32_t>(value, bytes);
  require_valid(epilogue == CUBLASLT_EPILOGUE_DEFAULT || epilogue == CUBLASLT_EPILOGUE_BIAS,
                "the stand-in knows no epilogue " + std::to_string(epilogue));
  return static_cast<cublasLtEpilogue_t>(epilogue);
}

std::uint32_t read_alignment(const void* value, std::size_t bytes) {
  const auto alignment = read<std::uint32_t>(value, bytes);
  require_valid(alignment != 0 && (alignment & (alignment - 1)) == 0,
                "an alignment is a power of two, not " + std::to_string(alignment));
  return alignment;
}

void set(Description& description, cublasLtMatmulDescAttributes_t attribute, const void* value,
         std::size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      description.a = read_operation(value, bytes);
      return;
    case CUBLASLT_MATMUL_DESC_TRANSB:
      description.b = read_operation(value, bytes);
      return;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      description.epilogue = read_epilogue(value, bytes);
      return;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      description.bias = read<const void*>(value, bytes);
      return;
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      description.a_scales = read<const void*>(value, bytes);
      return;
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      description.b_scales = read<const void*>(value, bytes);
      return;
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE:
      description.a_scale_mode = read_scale_mode(value, bytes);
      return;
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE:
      description.b_scale_mode = read_scale_mode(value, bytes);
      return;
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: {
      const auto type = read<std::int32_t>(value, bytes);
      require_valid(is_known(type), "the stand-in knows no type " + std::to_string(type));
      description.bias_type = type;
      return;
    }
  }
  throw Refusal{CUBLAS_STATUS_INVALID_VALUE,
                "the stand-in knows no attribute " + std::to_string(attribute) + " of a product"};
}

void set(Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
         std::size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      preference.workspace_bytes = read<std::uint64_t>(value, bytes);
      return;
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      preference.reduction_schemes = read<std::uint32_t>(value, bytes);
      require_valid(preference.reduction_schemes <= CUBLASLT_REDUCTION_SCHEME_MASK,
                    "no reduction schemes are " + std::to_string(preference.reduction_schemes));
      return;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      preference.a = read_alignment(value, bytes);
      return;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      preference.b = read_alignment(value, bytes);
      return;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      preference.c = read_alignment(value, bytes);
      return;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      preference.d = read_alignment(value, bytes);
      return;
  }
  throw Refusal{CUBLAS_STATUS_INVALID_VALUE,
                "the stand-in knows no attribute " + std::to_string(attribute) + " of a preference"};
}

}  // namespace

Registry<Handle, cublasLtHandle_t>& handles() {
  static auto* const all = new Registry<Handle, cublasLtHandle_t>("handle");
  return *all;
}
Registry<Layout, cublasLtMatrixLayout_t>& layouts() {
  static auto* const all = new Registry<Layout, cublasLtMatrixLayout_t>("matrix layout");
  return *all;
}
Registry<Description, cublasLtMatmulDesc_t>& descriptions() {
  static auto* const all = new Registry<Description, cublasLtMatmulDesc_t>("description of a product");
  return *all;
}
Registry<Preference, cublasLtMatmulPreference_t>& preferences() {
  static auto* const all = new Registry<Preference, cublasLtMatmulPreference_t>("preference");
  return *all;
}

int gpu_of(cublasLtHandle_t handle) {
  const int gpu = handles().at(handle, CUBLAS_STATUS_NOT_INITIALIZED).gpu;
  const int current = emulated_gpu_services()->current_gpu();
  require_valid(gpu == current, "the handle is for GPU " + std::to_string(gpu) + ", and GPU " +
                                    std::to_string(current) + " is current");
  return gpu;
}

}  // namespace tessera::emulated_cuda::cublas_lt

using namespace tessera::emulated_cuda;
using namespace tessera::emulated_cuda::cublas_lt;

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  return answer([&] {
    require_valid(handle != nullptr, "there is no place for the handle");
    const int gpu = emulated_gpu_services()->current_gpu();
    emulated_gpu_services()->take_for_handles(gpu);
    *handle = handles().add({gpu});
  });
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  return answer([&] { handles().destroy(handle); });
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* product, cublasComputeType_t compute_type,
                                        cudaDataType_t scale_type) {
  return answer([&] {
    require_valid(product != nullptr, "there is no place for the description");
    require_valid(compute_type == CUBLAS_COMPUTE_32F && scale_type == CUDA_R_32F,
                  "the stand-in computes in fp32, with scales in fp32");
    *product = descriptions().add({});
  });
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) {
  return answer([&] { descriptions().destroy(product); });
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                              cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              std::size_t bytes) {
  return answer([&] { set(descriptions().at(product), attribute, value, bytes); });
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          std::uint64_t rows, std::uint64_t columns, std::int64_t leading) {
  return answer([&] {
    require_valid(layout != nullptr, "there is no place for the layout");
    require_valid(is_known(type), "the stand-in knows no type " + std::to_string(type));
    constexpr std::uint64_t kMost = std::numeric_limits<std::int32_t>::max();
    require_valid(rows > 0 && columns > 0 && rows <= kMost && columns <= kMost,
                  "a matrix is not " + std::to_string(rows) + " x " + std::to_string(columns));
    *layout =
        layouts().add({type, static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns), leading});
  });
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return answer([&] { layouts().destroy(layout); });
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return answer([&] {
    require_valid(preference != nullptr, "there is no place for the preference");
    *preference = preferences().add({});
  });
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return answer([&] { preferences().destroy(preference); });
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t bytes) {
  return answer([&] { set(preferences().at(preference), attribute, value, bytes); });
}
