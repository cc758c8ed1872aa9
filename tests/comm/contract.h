// The contract of tessera::Communicator as tests that any backend is run through: a test program includes
// contract_tests.h and instantiates the suite with a BackendUnderTest for each world.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "tessera/communicator.h"

namespace tessera::contract {

struct RunOptions {
  std::chrono::milliseconds deadline{20'000};
};

// Runs a function on every rank of a new world, as run_local does: rethrows the cause, fills `messages` per
// rank.
using Run =
    std::function<void(int world, const RunOptions&, const std::function<void(Communicator)>& rank_main,
                       std::vector<std::string>* messages)>;

struct BackendUnderTest {
  std::string name;
  int world = 1;
  Run run;
  std::function<std::string()> missing = {};  // why it cannot be tested here; empty or null where it can
  bool checks_messages = true;                // what sender and receiver call is compared
  bool has_meetings = true;                   // Backend::meet()
};

inline void PrintTo(const BackendUnderTest& backend, std::ostream* out) {
  *out << backend.name << " with " << backend.world << " ranks";
}

class CommunicatorContract : public testing::TestWithParam<BackendUnderTest> {
 protected:
  void SetUp() override {
    if (!GetParam().missing) return;
    if (const std::string why = GetParam().missing(); !why.empty()) GTEST_SKIP() << why;
  }
  int world() const { return GetParam().world; }

  void run(const std::function<void(Communicator)>& rank_main) {
    GetParam().run(world(), {}, rank_main, nullptr);
  }

  // For runs that must fail with a CommunicationError: what each rank threw.
  std::vector<std::string> run_to_failure(const RunOptions& options,
                                          const std::function<void(Communicator)>& rank_main) {
    std::vector<std::string> messages;
    EXPECT_THROW(GetParam().run(world(), options, rank_main, &messages), CommunicationError);
    return messages;
  }
};

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Reproducible bits from (rank, salt, index).
inline std::uint64_t bits_of(int rank, int salt, std::int64_t index) {
  std::uint64_t x = static_cast<std::uint64_t>(index) * 0x9E3779B97F4A7C15u +
                    static_cast<std::uint64_t>(rank) * 7919u + static_cast<std::uint64_t>(salt) * 104729u + 1;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// Values over many magnitudes and of both signs, so that the order of a sum shows in its bits.
inline float value_of(int rank, int salt, std::int64_t index) {
  const std::uint64_t bits = bits_of(rank, salt, index);
  const double mantissa = static_cast<double>(bits >> 11) * 0x1p-53 - 0.5;
  return static_cast<float>(std::ldexp(mantissa, static_cast<int>(bits & 15) - 8));
}

inline std::vector<std::uint8_t> bytes_of(int rank, int salt, std::int64_t count) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i)
    bytes[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(bits_of(rank, salt, i));
  return bytes;
}

// An element of a wire type and the fp32 number it stands for.
inline std::uint32_t stored(DType type, int rank, int salt, std::int64_t index) {
  if (type == DType::fp32) return std::bit_cast<std::uint32_t>(value_of(rank, salt, index));
  const auto bits = static_cast<std::uint16_t>(bits_of(rank, salt, index));
  // Exponents from 2^-9 on, where neither type overflows or is not a number; now and then fp16's subnormals.
  if (type == DType::bf16) return (bits & 0x87FFu) | 0x3800u;
  return bits % 13 == 0 ? bits & 0x83FFu : bits & 0xBFFFu;
}

inline float widened(DType type, std::uint32_t bits) {
  if (type == DType::fp32) return std::bit_cast<float>(bits);
  const int fraction_bits = type == DType::bf16 ? 7 : 10, bias = type == DType::bf16 ? 127 : 15;
  const int exponent = static_cast<int>((bits & 0x7FFFu) >> fraction_bits);
  const int fraction = static_cast<int>(bits & ((1u << fraction_bits) - 1));
  const int hidden = exponent == 0 ? 0 : 1 << fraction_bits;
  const double magnitude =
      std::ldexp(hidden + fraction, (exponent == 0 ? 1 : exponent) - bias - fraction_bits);
  return static_cast<float>((bits & 0x8000u) != 0 ? -magnitude : magnitude);
}

// numel elements of a wire type, as raw bytes.
inline std::vector<std::uint8_t> stored_buffer(DType type, int rank, int salt, std::int64_t numel) {
  const std::int64_t width = tessera::bytes_of(type);
  std::vector<std::uint8_t> buffer(static_cast<std::size_t>(numel * width));
  for (std::int64_t i = 0; i < numel; ++i) {
    const std::uint32_t bits = stored(type, rank, salt, i);
    for (std::int64_t byte = 0; byte < width; ++byte)
      buffer[static_cast<std::size_t>(i * width + byte)] = static_cast<std::uint8_t>(bits >> (8 * byte));
  }
  return buffer;
}

inline std::vector<std::uint32_t> raw(const std::vector<float>& values) {
  std::vector<std::uint32_t> bits;
  for (float value : values) bits.push_back(std::bit_cast<std::uint32_t>(value));
  return bits;
}

inline std::vector<std::uint64_t> raw(const std::vector<double>& values) {
  std::vector<std::uint64_t> bits;
  for (double value : values) bits.push_back(std::bit_cast<std::uint64_t>(value));
  return bits;
}

}  // namespace tessera::contract
