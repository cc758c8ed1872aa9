// A descriptor of cuDNN's backend interface: what a caller has said by its attributes. Which type has which
// attributes, how many elements each takes and which of them must be set is one table (descriptor.cpp). As
// strict as cuDNN 9.19, and stricter in one place: a descriptor is refused as an attribute before it is
// finalized, not only when what it is part of is.
#pragma once

#include <cudnn_graph.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace tessera::emulated_cudnn {

// Thrown where cuDNN returns a status. cudnnGetLastErrorString() says `why`.
struct Refusal {
  cudnnStatus_t status;
  std::string why;
};

class Descriptor;
using DescriptorPtr = std::shared_ptr<Descriptor>;
using Attribute = cudnnBackendAttributeName_t;

class Descriptor {
 public:
  explicit Descriptor(cudnnBackendDescriptorType_t type);

  cudnnBackendDescriptorType_t type() const { return type_; }
  bool is_finalized() const { return finalized_; }

  // As cudnnBackendSetAttribute; `elements` are no descriptors.
  void set(Attribute name, cudnnBackendAttributeType_t type, std::int64_t count, const void* elements);
  // As cudnnBackendSetAttribute of descriptors, which live on with this one.
  void set(Attribute name, const std::vector<DescriptorPtr>& descriptors);
  // That the caller may read `name`, an attribute of this type.
  void check_read(Attribute name, cudnnBackendAttributeType_t type) const;
  // Refuses a descriptor that misses an attribute, or that was finalized.
  void finalize();
  // Makes this one what `other` is, as cuDNN fills in the descriptors that it is given to answer with.
  void become(const Descriptor& other);

  bool has(Attribute name) const { return values_.contains(name); }
  std::int64_t count(Attribute name) const;
  const std::vector<std::byte>& bytes(Attribute name) const;
  const std::vector<DescriptorPtr>& descriptors(Attribute name) const;
  const Descriptor& descriptor(Attribute name) const { return *descriptors(name).front(); }
  // Of an attribute that is set.
  template <class T>
  std::vector<T> all(Attribute name) const {
    std::vector<T> elements(bytes(name).size() / sizeof(T));
    std::memcpy(elements.data(), bytes(name).data(), elements.size() * sizeof(T));
    return elements;
  }
  template <class T>
  T one(Attribute name) const {
    T element;
    std::memcpy(&element, bytes(name).data(), sizeof(T));
    return element;
  }
  template <class T>
  T one_or(Attribute name, T otherwise) const {
    return has(name) ? one<T>(name) : otherwise;
  }

 private:
  struct Value {
    std::int64_t count = 0;
    std::vector<std::byte> bytes = {};
    std::vector<DescriptorPtr> descriptors = {};
  };
  void check_open(Attribute name) const;

  cudnnBackendDescriptorType_t type_;
  bool finalized_ = false;
  std::map<Attribute, Value> values_;
};

// Sizes of what cuDNN calls types of attributes.
std::size_t bytes_of(cudnnBackendAttributeType_t type);

}  // namespace tessera::emulated_cudnn
