#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/nn/gpt2_fixture.h"

namespace {

// The matmul library makes small lists of its arguments in every call. The smallest tensor of the test takes
// more.
constexpr std::size_t kNotableBytes = 128;
std::atomic<std::int64_t> notable_allocations{0};

}  // namespace

void* operator new(std::size_t bytes) {
  if (bytes >= kNotableBytes) notable_allocations.fetch_add(1);
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace tessera::testing {
namespace {

void run_once(ModelRun& run) {
  run.forward(StepKind::train);
  for (int unit = 0; unit < run.units(); ++unit) run.recompute(unit);
  run.backward();
  run.forward(StepKind::evaluate);
}

TEST(Gpt2Allocations, NoneAfterTheFirstMicrobatch) {
  static_assert(kSmallBatch.tokens() * 4 >= static_cast<std::int64_t>(kNotableBytes));
  for (const DType type : {DType::fp32, DType::bf16}) {
    SmallGpt2 small(type);
    run_once(small.run);
    small.run.count_allocations = [] { return notable_allocations.load(); };
    run_once(small.run);
    EXPECT_EQ(small.run.allocations, 0);
  }
}

}  // namespace
}  // namespace tessera::testing
