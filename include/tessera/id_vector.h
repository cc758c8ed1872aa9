// A std::vector that is indexed by ids, which are ints counted from 0. Adds nothing else to std::vector.
#pragma once

#include <concepts>
#include <cstddef>
#include <utility>
#include <vector>

namespace tessera {

template <class T>
class IdVector : public std::vector<T> {
 public:
  using std::vector<T>::vector;
  IdVector(std::vector<T> values) : std::vector<T>(std::move(values)) {}  // NOLINT: the same values

  // The count of elements, as an int.
  int count() const { return static_cast<int>(this->size()); }
  // The id must exist.
  typename std::vector<T>::reference operator[](std::integral auto id) {
    return std::vector<T>::operator[](static_cast<std::size_t>(id));
  }
  typename std::vector<T>::const_reference operator[](std::integral auto id) const {
    return std::vector<T>::operator[](static_cast<std::size_t>(id));
  }
  // Throws std::out_of_range if the id does not exist.
  typename std::vector<T>::reference at(std::integral auto id) {
    return std::vector<T>::at(static_cast<std::size_t>(id));
  }
  typename std::vector<T>::const_reference at(std::integral auto id) const {
    return std::vector<T>::at(static_cast<std::size_t>(id));
  }
};

}  // namespace tessera
