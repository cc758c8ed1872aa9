// What the kernel tests share: typed tensors, workspaces, comparison with float64, finite differences.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/float_types.h"
#include "kernels/kernels.h"

namespace tessera::kernels::testing {

using Doubles = std::vector<double>;

// A tensor of any type whose bytes start as NaN, so that what a kernel leaves unwritten, or reads unasked,
// shows.
class Tensor {
 public:
  Tensor(DType type, std::int64_t numel)
      : type_(type), numel_(numel), bytes_(static_cast<std::size_t>(numel * bytes_of(type)), 0xff) {}
  Tensor(DType type, const Doubles& values) : Tensor(type, static_cast<std::int64_t>(values.size())) {
    for (std::int64_t i = 0; i < numel_; ++i) set(i, values[static_cast<std::size_t>(i)]);
  }

  void* data() { return bytes_.data(); }
  const void* data() const { return bytes_.data(); }
  float* floats() { return reinterpret_cast<float*>(bytes_.data()); }
  std::int64_t numel() const { return numel_; }
  DType type() const { return type_; }

  void set(std::int64_t i, double value) {
    const float narrow = static_cast<float>(value);
    switch (type_) {
      case DType::fp32:
        return put(i, narrow);
      case DType::bf16:
        return put(i, from_float<Bf16>(narrow));
      case DType::fp16:
        return put(i, from_float<Fp16>(narrow));
    }
  }
  double get(std::int64_t i) const {
    switch (type_) {
      case DType::fp32:
        return take<float>(i);
      case DType::bf16:
        return static_cast<double>(to_float(take<Bf16>(i)));
      case DType::fp16:
        return static_cast<double>(to_float(take<Fp16>(i)));
    }
    return 0.0;
  }
  Doubles doubles() const {
    Doubles values;
    for (std::int64_t i = 0; i < numel_; ++i) values.push_back(get(i));
    return values;
  }
  bool operator==(const Tensor& other) const { return type_ == other.type_ && bytes_ == other.bytes_; }

 private:
  template <class T>
  void put(std::int64_t i, T value) {
    std::memcpy(bytes_.data() + i * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
  }
  template <class T>
  T take(std::int64_t i) const {
    T value;
    std::memcpy(&value, bytes_.data() + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
    return value;
  }

  DType type_;
  std::int64_t numel_;
  std::vector<unsigned char> bytes_;
};

// Memory whose first element lies at a cache line, as of what is stored past the caches.
class Aligned {
 public:
  Aligned(DType type, std::int64_t numel)
      : bytes_(static_cast<std::size_t>(numel * bytes_of(type))), memory_(bytes_ + 128, 0xff) {}

  explicit Aligned(const Tensor& from) : Aligned(from.type(), from.numel()) {
    std::memcpy(data(), from.data(), bytes_);
  }

  float* floats() { return reinterpret_cast<float*>(data()); }
  unsigned char* data() {
    return memory_.data() + (64 - reinterpret_cast<std::uintptr_t>(memory_.data()) % 64);
  }
  void copy_to(Tensor& to) { std::memcpy(to.data(), data(), bytes_); }
  bool kept_what_follows() { return data()[bytes_] == 0xff; }

 private:
  std::size_t bytes_;
  std::vector<unsigned char> memory_;
};

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  double normal() { return normal_(engine_); }
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(bound));
  }
  Tensor tensor(DType type, std::int64_t numel, double scale = 1.0, double shift = 0.0) {
    Tensor result(type, numel);
    for (std::int64_t i = 0; i < numel; ++i) result.set(i, shift + scale * normal());
    return result;
  }
  std::vector<std::int32_t> tokens(std::int64_t count, std::int64_t vocabulary) {
    std::vector<std::int32_t> result;
    for (std::int64_t i = 0; i < count; ++i) result.push_back(static_cast<std::int32_t>(below(vocabulary)));
    return result;
  }

 private:
  std::mt19937_64 engine_;
  std::normal_distribution<double> normal_;
};

// ThreadSanitizer does not see the barriers of the OpenMP library and would report every team; threads of the
// test's own remain.
#ifdef __SANITIZE_THREAD__
constexpr int kMostThreads = 1;
#else
constexpr int kMostThreads = 16;
#endif

// A context with exactly as much workspace as asked for, full of NaN.
class TestContext {
 public:
  explicit TestContext(int threads, std::int64_t workspace_bytes = 0)
      : memory_(static_cast<std::size_t>(workspace_bytes + 64), 0xff) {
    auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    address = (address + 63) / 64 * 64;
    context_ = {.threads = std::min(threads, kMostThreads),
                .workspace = {.data = reinterpret_cast<void*>(address), .bytes = workspace_bytes}};
  }
  operator const ComputeContext&() const { return context_; }

 private:
  std::vector<unsigned char> memory_;
  ComputeContext context_;
};

// The largest error relative to the reference's root mean square.
inline double error_of(const Doubles& actual, const Doubles& expected) {
  if (expected.empty()) return 0.0;
  double worst = 0.0;
  double squares = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double error = std::abs(actual[i] - expected[i]);
    if (!(error <= worst)) worst = error;  // also where it is NaN
    if (std::isnan(worst)) return worst;
    squares += expected[i] * expected[i];
  }
  return worst / (std::sqrt(squares / static_cast<double>(expected.size())) + 1e-30);
}

inline void expect_close(const Doubles& actual, const Doubles& expected, double tolerance,
                         const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  const double error = error_of(actual, expected);
  EXPECT_TRUE(error <= tolerance) << what << ": error " << error << ", allowed " << tolerance;
}
inline void expect_close(const Tensor& actual, const Doubles& expected, double tolerance,
                         const std::string& what) {
  expect_close(actual.doubles(), expected, tolerance, what);
}

// Of one rounding of results a few root mean squares large, or of fp32 sums of moderate length.
inline double tolerance_of(DType type) { return type == DType::fp32 ? 2e-5 : 0.025; }

// d(function)/d(x) by central differences.
inline Doubles finite_differences(Doubles x, const std::function<double(const Doubles&)>& function) {
  Doubles gradient;
  for (double& value : x) {
    const double kept = value;
    const double h = 1e-5;
    value = kept + h;
    const double above = function(x);
    value = kept - h;
    const double below = function(x);
    value = kept;
    gradient.push_back((above - below) / (2 * h));
  }
  return gradient;
}

inline double dot(const Doubles& a, const Doubles& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

inline Doubles sum_of(Doubles a, const Doubles& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

constexpr DType kComputeTypes[] = {DType::fp32, DType::bf16};
constexpr DType kAllTypes[] = {DType::fp32, DType::bf16, DType::fp16};
constexpr int kThreadCounts[] = {1, 2};

}  // namespace tessera::kernels::testing
