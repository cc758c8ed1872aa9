// The contract of tessera::Communicator as tests that any backend is run through: a test program links the
// objects comm_contract and instantiates the suites below with a BackendUnderTest for each world.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "kernels/reduce.h"
#include "tessera/communicator.h"

namespace tessera::contract {

using std::chrono::milliseconds;

struct RunOptions {
  milliseconds deadline{20'000};
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
  bool lanes_have_threads = true;             // a rank's communicators may be called by several at a time
};

inline void PrintTo(const BackendUnderTest& backend, std::ostream* out) {
  *out << backend.name << " with " << backend.world << " ranks";
}

class CommunicatorContract : public ::testing::TestWithParam<BackendUnderTest> {
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

class CommunicatorErrors : public CommunicatorContract {};

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

// The sum as ReduceScatter::balanced makes it.
inline float tree_of(std::span<const float> terms) {
  if (terms.size() == 1) return terms[0];
  const std::size_t half = std::bit_floor(terms.size() - 1);
  return tree_of(terms.first(half)) + tree_of(terms.subspan(half));
}

// Of every type and several sizes, three microbatches are reduced into the same shard; check(wire,
// microbatch, shard) behind each. In the last, `contributors` have something to add.
template <class Check>
void reduce_microbatches(Communicator& ranks, Reduction reduction, const Contributors& contributors,
                         const Check& check) {
  const int n = ranks.world(), me = ranks.rank();
  for (const DType wire : {DType::fp32, DType::bf16, DType::fp16})
    for (const std::int64_t numel : {0, 1, 7, 64, 1000, 4097}) {
      std::vector<float> shard(static_cast<std::size_t>(numel), 99.0f);
      for (int microbatch = 0; microbatch < 3; ++microbatch) {
        const auto full = stored_buffer(wire, me, microbatch, n * numel);
        const auto unchanged = full;
        SquareSum squares = {.nonfinite = 1}, expected = squares;  // which are added to
        constexpr std::int64_t kPlace = 7 * kSquareBlock;
        const Contributors from = microbatch == 2 ? contributors : Contributors{};
        ranks.reduce_scatter({.full = from.contains(me) ? full.data() : nullptr,
                              .wire = wire,
                              .shard = shard.data(),
                              .shard_numel = numel,
                              .accumulate = microbatch > 0,
                              .contributors = from,
                              .reduction = reduction,
                              .squares = {microbatch == 1 ? nullptr : &squares, kPlace}},
                             {.unit = "u"});
        ASSERT_EQ(full, unchanged);
        if (microbatch != 1)
          kernels::sum_of_squares({}, numel, DType::fp32, shard.data(), {&expected, kPlace});
        ASSERT_TRUE(squares == expected) << numel << " of " << name_of(wire);
        ASSERT_NO_FATAL_FAILURE(check(wire, microbatch, shard));
      }
    }
}

// What `peer` gave there to element i of this rank's shard of `numel`.
inline float contribution(const Communicator& ranks, DType wire, int peer, int microbatch, std::size_t numel,
                          std::size_t i) {
  const std::size_t place = static_cast<std::size_t>(ranks.rank()) * numel + i;
  return widened(wire, stored(wire, peer, microbatch, static_cast<std::int64_t>(place)));
}

// In place the slice of this rank has the bits of a reduction to elsewhere, and nothing else changes.
inline void check_in_place(Communicator& ranks, Reduction reduction) {
  const int n = ranks.world(), me = ranks.rank();
  for (const std::int64_t numel : {1, 7, 1000, 5000}) {
    std::vector<float> full, out(static_cast<std::size_t>(numel));
    for (std::int64_t i = 0; i < n * numel; ++i) full.push_back(value_of(me, 0, i));
    std::vector<float> expected = full;
    ReduceScatter call{
        .full = full.data(), .shard = out.data(), .shard_numel = numel, .reduction = reduction};
    ranks.reduce_scatter(call);
    std::copy(out.begin(), out.end(), expected.begin() + me * numel);
    call.shard = full.data() + me * numel;
    ranks.reduce_scatter(call);
    ASSERT_EQ(raw(full), raw(expected)) << "only this rank's slice changes";
  }
}

// Every rank must fail, and know both calls: as its own finding or as another's report.
inline void expect_mismatch(const std::vector<std::string>& messages, const std::string& one,
                            const std::string& other) {
  for (std::size_t rank = 0; rank < messages.size(); ++rank) {
    EXPECT_TRUE(contains(messages[rank], one) && contains(messages[rank], other))
        << "rank " << rank << " should name '" << one << "' and '" << other << "': " << messages[rank];
  }
}

}  // namespace tessera::contract
