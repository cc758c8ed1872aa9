// Counts every operator new of the process, so that the streams can be shown to need none per operation.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "tessera/device.h"

namespace {
std::atomic<std::int64_t> allocations{0};
}

void* operator new(std::size_t bytes) {
  allocations.fetch_add(1);
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace tessera {
namespace {

TEST(StreamAllocations, NonePerOperation) {
  const auto device = make_cpu_device({.busy_threads = 2});
  const auto compute = device->make_stream({.name = "compute", .on_caller = true});
  const auto gather = device->make_stream({.name = "gather", .capacity = 8});
  std::int64_t value = 0;
  const Task task = {.run = [](void* context, std::uint64_t) { ++*static_cast<std::int64_t*>(context); },
                     .context = &value};
  const std::int64_t before = allocations.load();
  for (int i = 0; i < 1000; ++i) {
    gather->wait(compute->record());
    gather->run(task);
    compute->wait(gather->record());
    compute->run(task);
  }
  gather->synchronize();
  EXPECT_EQ(allocations.load() - before, 0);
  EXPECT_EQ(value, 2000);
}

}  // namespace
}  // namespace tessera
