#include "tests/emulated_cuda/cudnn/descriptor.h"

#include <algorithm>
#include <span>

namespace tessera::emulated_cudnn {
namespace {

struct Rule {
  Attribute name;
  cudnnBackendAttributeType_t type;
  std::int64_t most = 1;  // elements
  bool required = true;
};

constexpr auto kDescriptor = CUDNN_TYPE_BACKEND_DESCRIPTOR;
constexpr bool kOptional = false;
constexpr std::int64_t kMostDims = 8, kMany = 1024;

constexpr Rule kTensor[] = {{CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64},
                            {CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE},
                            {CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, kMostDims},
                            {CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, kMostDims},
                            {CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64},
                            {CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, kOptional},
                            {CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, kOptional}};
constexpr Rule kPointwise[] = {{CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE},
                               {CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE},
                               {CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, kOptional}};
constexpr Rule kPointwiseOperation[] = {
    {CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kDescriptor},
    {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, kDescriptor},
    {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, kDescriptor},
    {CUDNN_ATTR_OPERATION_POINTWISE_BDESC, kDescriptor, 1, kOptional},
    {CUDNN_ATTR_OPERATION_POINTWISE_TDESC, kDescriptor, 1, kOptional},
    {CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, CUDNN_TYPE_FLOAT, 1, kOptional},
    {CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, CUDNN_TYPE_FLOAT, 1, kOptional}};
constexpr Rule kMatmul[] = {{CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE}};
constexpr Rule kMatmulOperation[] = {{CUDNN_ATTR_OPERATION_MATMUL_ADESC, kDescriptor},
                                     {CUDNN_ATTR_OPERATION_MATMUL_BDESC, kDescriptor},
                                     {CUDNN_ATTR_OPERATION_MATMUL_CDESC, kDescriptor},
                                     {CUDNN_ATTR_OPERATION_MATMUL_DESC, kDescriptor}};
constexpr Rule kReduction[] = {{CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE},
                               {CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE},
                               {CUDNN_ATTR_REDUCTION_IS_DETERMINISTIC, CUDNN_TYPE_BOOLEAN, 1, kOptional}};
constexpr Rule kReductionOperation[] = {{CUDNN_ATTR_OPERATION_REDUCTION_XDESC, kDescriptor},
                                        {CUDNN_ATTR_OPERATION_REDUCTION_YDESC, kDescriptor},
                                        {CUDNN_ATTR_OPERATION_REDUCTION_DESC, kDescriptor}};
constexpr Rule kReshapeOperation[] = {{CUDNN_ATTR_OPERATION_RESHAPE_XDESC, kDescriptor},
                                      {CUDNN_ATTR_OPERATION_RESHAPE_YDESC, kDescriptor}};
constexpr Rule kGraph[] = {{CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE},
                           {CUDNN_ATTR_OPERATIONGRAPH_OPS, kDescriptor, kMany}};
constexpr Rule kHeuristics[] = {{CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, kDescriptor},
                                {CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE},
                                {CUDNN_ATTR_ENGINEHEUR_RESULTS, kDescriptor, kMany, kOptional}};
constexpr Rule kEngine[] = {
    {CUDNN_ATTR_ENGINE_OPERATION_GRAPH, kDescriptor},
    {CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64},
    {CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT, kOptional},
    {CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE, CUDNN_BEHAVIOR_NOTE_TYPE_COUNT, kOptional}};
constexpr Rule kConfiguration[] = {
    {CUDNN_ATTR_ENGINECFG_ENGINE, kDescriptor},
    {CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, kDescriptor, CUDNN_KNOB_TYPE_COUNTS, kOptional},
    {CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, kOptional},
    {CUDNN_ATTR_ENGINECFG_SHARED_MEMORY_USED, CUDNN_TYPE_INT32, 1, kOptional}};
constexpr Rule kKnobChoice[] = {{CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE},
                                {CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64}};
constexpr Rule kPlan[] = {{CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, kDescriptor},
                          {CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, kOptional}};
constexpr Rule kVariantPack[] = {
    {CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, kMany, kOptional},
    {CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, kMany, kOptional},
    {CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, kOptional}};

std::span<const Rule> rules_of(cudnnBackendDescriptorType_t type) {
  switch (type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
      return kTensor;
    case CUDNN_BACKEND_POINTWISE_DESCRIPTOR:
      return kPointwise;
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
      return kPointwiseOperation;
    case CUDNN_BACKEND_MATMUL_DESCRIPTOR:
      return kMatmul;
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
      return kMatmulOperation;
    case CUDNN_BACKEND_REDUCTION_DESCRIPTOR:
      return kReduction;
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
      return kReductionOperation;
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
      return kReshapeOperation;
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
      return kGraph;
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
      return kHeuristics;
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
      return kEngine;
    case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR:
      return kConfiguration;
    case CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR:
      return kKnobChoice;
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
      return kPlan;
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
      return kVariantPack;
    default:
      throw Refusal{CUDNN_STATUS_NOT_SUPPORTED,
                    "the stand-in knows no descriptor of type " + std::to_string(type)};
  }
}

const Rule& rule_of(cudnnBackendDescriptorType_t type, Attribute name) {
  const std::span<const Rule> rules = rules_of(type);
  const auto found = std::ranges::find(rules, name, &Rule::name);
  if (found == rules.end())
    throw Refusal{CUDNN_STATUS_BAD_PARAM, "a descriptor of type " + std::to_string(type) +
                                              " has no attribute " + std::to_string(name)};
  return *found;
}

void check_type(const Rule& rule, cudnnBackendAttributeType_t type) {
  if (type != rule.type)
    throw Refusal{CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "attribute " + std::to_string(rule.name) +
                                                             " is of type " + std::to_string(rule.type) +
                                                             ", not " + std::to_string(type)};
}

void check_count(const Rule& rule, std::int64_t count) {
  if (count < 1 || count > rule.most)
    throw Refusal{CUDNN_STATUS_BAD_PARAM, "attribute " + std::to_string(rule.name) + " takes 1 to " +
                                              std::to_string(rule.most) + " elements, not " +
                                              std::to_string(count)};
}

}  // namespace

std::size_t bytes_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
      return sizeof(bool);
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
      return 8;
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
      return sizeof(void*);
    default:
      return 4;  // fp32, int32 and the enumerations
  }
}

Descriptor::Descriptor(cudnnBackendDescriptorType_t type) : type_(type) { rules_of(type); }

void Descriptor::check_open(Attribute name) const {
  if (finalized_)
    throw Refusal{CUDNN_STATUS_BAD_PARAM,
                  "attribute " + std::to_string(name) + " of a descriptor that was finalized"};
}

void Descriptor::set(Attribute name, cudnnBackendAttributeType_t type, std::int64_t count,
                     const void* elements) {
  check_open(name);
  const Rule& rule = rule_of(type_, name);
  check_type(rule, type);
  check_count(rule, count);
  if (elements == nullptr)
    throw Refusal{CUDNN_STATUS_BAD_PARAM, "attribute " + std::to_string(name) + " of no elements"};
  const auto* const begin = static_cast<const std::byte*>(elements);
  values_[name] = {.count = count,
                   .bytes = {begin, begin + bytes_of(type) * static_cast<std::size_t>(count)}};
}

void Descriptor::set(Attribute name, const std::vector<DescriptorPtr>& descriptors) {
  check_open(name);
  const Rule& rule = rule_of(type_, name);
  check_type(rule, kDescriptor);
  check_count(rule, static_cast<std::int64_t>(descriptors.size()));
  for (const DescriptorPtr& descriptor : descriptors)
    if (!descriptor->is_finalized())
      throw Refusal{CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED,
                    "attribute " + std::to_string(name) + ": the descriptor is not finalized"};
  values_[name] = {.count = static_cast<std::int64_t>(descriptors.size()), .descriptors = descriptors};
}

void Descriptor::check_read(Attribute name, cudnnBackendAttributeType_t type) const {
  if (!finalized_)
    throw Refusal{CUDNN_STATUS_NOT_INITIALIZED,
                  "attribute " + std::to_string(name) + " of a descriptor that is not finalized"};
  check_type(rule_of(type_, name), type);
}

void Descriptor::finalize() {
  if (finalized_) throw Refusal{CUDNN_STATUS_BAD_PARAM, "a descriptor is finalized twice"};
  for (const Rule& rule : rules_of(type_))
    if (rule.required && !has(rule.name))
      throw Refusal{CUDNN_STATUS_BAD_PARAM, "a descriptor of type " + std::to_string(type_) +
                                                " is finalized without attribute " +
                                                std::to_string(rule.name)};
  finalized_ = true;
}

void Descriptor::become(const Descriptor& other) {
  if (other.type_ != type_)
    throw Refusal{CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "a descriptor of type " + std::to_string(type_) +
                                                              " cannot be filled in with one of type " +
                                                              std::to_string(other.type_)};
  finalized_ = other.finalized_;
  values_ = other.values_;
}

std::int64_t Descriptor::count(Attribute name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? 0 : found->second.count;
}
const std::vector<std::byte>& Descriptor::bytes(Attribute name) const { return values_.at(name).bytes; }
const std::vector<DescriptorPtr>& Descriptor::descriptors(Attribute name) const {
  return values_.at(name).descriptors;
}

}  // namespace tessera::emulated_cudnn
