// A std::vector and a std::span that are indexed by ids, which are ints counted from 0. They add nothing
// else.
#pragma once

#include <concepts>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace tessera {

template <class T>
class IdVector : public std::vector<T> {
 public:
  using std::vector<T>::vector;
  IdVector(std::vector<T> values) : std::vector<T>(std::move(values)) {}  // NOLINT: the same values
  explicit IdVector(int count) : std::vector<T>(static_cast<std::size_t>(count)) {}
  IdVector(int count, const T& value) : std::vector<T>(static_cast<std::size_t>(count), value) {}

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

template <class T>
class IdSpan : public std::span<T> {
 public:
  using std::span<T>::span;
  IdSpan(std::span<T> values) : std::span<T>(values) {}  // NOLINT: the same values

  int count() const { return static_cast<int>(this->size()); }
  // The id must exist.
  typename std::span<T>::reference operator[](std::integral auto id) const {
    return std::span<T>::operator[](static_cast<std::size_t>(id));
  }
};

}  // namespace tessera
