// Values drawn many at once, to the bit: against the functions of tessera/philox.h.
#include "kernels/random.h"

#include <limits>
#include <vector>

#include "tessera/philox.h"
#include "tests/kernels/instruction_sets.h"

namespace tessera::kernels::testing {
namespace {

constexpr double kScale = 0.02;

float expected(Distribution distribution, std::uint64_t seed, std::uint64_t stream, std::uint64_t element) {
  if (distribution == Distribution::normal) return static_cast<float>(kScale * normal(seed, stream, element));
  return static_cast<float>(kScale * (2.0 * uniform(seed, stream, element) - 1.0));
}

std::vector<float> drawn(int threads, Distribution distribution, std::uint64_t seed, std::uint64_t stream,
                         std::uint64_t begin, std::size_t numel) {
  std::vector<float> values(numel, std::numeric_limits<float>::quiet_NaN());
  draw_values(threads, distribution, kScale, seed, stream, begin, values);
  return values;
}

TEST(Random, IsThatOfOneElement) {
  struct Of {
    std::uint64_t seed, stream, begin;
  };
  for (const Distribution distribution : {Distribution::normal, Distribution::uniform})
    for (const Of& of : {Of{1, 2, 0}, Of{7, 0x123456789abcdef0, 31}, Of{~0ULL, ~0ULL, (1ULL << 33) - 5000},
                         Of{5, 1, (1ULL << 40) + 3}}) {
      const std::size_t numel = 10007;
      for_each_instruction_set([&](const char* name) {
        const std::vector<float> values = drawn(1, distribution, of.seed, of.stream, of.begin, numel);
        for (std::size_t i = 0; i < numel; ++i)
          ASSERT_EQ(values[i], expected(distribution, of.seed, of.stream, of.begin + i)) << name << ", " << i;
      });
    }
}

TEST(Random, DoesNotDependOnCutsOrThreads) {
  const std::size_t numel = 70001;
  const std::vector<float> whole = drawn(1, Distribution::normal, 3, 4, 9, numel);
  for (const int threads : {2, 3}) EXPECT_EQ(drawn(threads, Distribution::normal, 3, 4, 9, numel), whole);
  for (std::size_t begin = 0; begin + 50 < 500; ++begin) {
    const std::vector<float> part = drawn(1, Distribution::normal, 3, 4, 9 + begin, begin % 50 + 1);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<std::ptrdiff_t>(begin)))
        << begin;
  }
  EXPECT_TRUE(drawn(2, Distribution::normal, 3, 4, 9, 0).empty());
}

}  // namespace
}  // namespace tessera::kernels::testing
