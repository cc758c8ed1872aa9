// A std::vector, a std::span and a std::array that are indexed by ids, which are ints counted from 0, or by
// the enumerators of an enum whose values count from 0. They add nothing else.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace tessera {

template <class T>
concept IdOrEnum = std::integral<T> || std::is_enum_v<T>;

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
  typename std::vector<T>::reference operator[](IdOrEnum auto id) {
    return std::vector<T>::operator[](static_cast<std::size_t>(id));
  }
  typename std::vector<T>::const_reference operator[](IdOrEnum auto id) const {
    return std::vector<T>::operator[](static_cast<std::size_t>(id));
  }
  // Throws std::out_of_range if the id does not exist.
  typename std::vector<T>::reference at(IdOrEnum auto id) {
    return std::vector<T>::at(static_cast<std::size_t>(id));
  }
  typename std::vector<T>::const_reference at(IdOrEnum auto id) const {
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
  typename std::span<T>::reference operator[](IdOrEnum auto id) const {
    return std::span<T>::operator[](static_cast<std::size_t>(id));
  }
};

// An aggregate, as std::array is.
template <class T, std::size_t kCount>
struct IdArray : std::array<T, kCount> {
  // The id must exist.
  constexpr T& operator[](IdOrEnum auto id) {
    return std::array<T, kCount>::operator[](static_cast<std::size_t>(id));
  }
  constexpr const T& operator[](IdOrEnum auto id) const {
    return std::array<T, kCount>::operator[](static_cast<std::size_t>(id));
  }
  // Throws std::out_of_range if the id does not exist.
  constexpr T& at(IdOrEnum auto id) { return std::array<T, kCount>::at(static_cast<std::size_t>(id)); }
  constexpr const T& at(IdOrEnum auto id) const {
    return std::array<T, kCount>::at(static_cast<std::size_t>(id));
  }
};

}  // namespace tessera

// A structured binding takes it apart, as it does a std::array.
template <class T, std::size_t kCount>
struct std::tuple_size<tessera::IdArray<T, kCount>> : std::tuple_size<std::array<T, kCount>> {};
template <std::size_t kIndex, class T, std::size_t kCount>
struct std::tuple_element<kIndex, tessera::IdArray<T, kCount>>
    : std::tuple_element<kIndex, std::array<T, kCount>> {};
