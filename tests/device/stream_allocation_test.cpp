#include <gtest/gtest.h>

#include "tessera/device.h"
#include "tests/device/count_allocations.h"

namespace tessera {
namespace {

TEST(StreamAllocations, NonePerOperation) {
  const auto device = make_cpu_device({.busy_threads = 2});
  const auto compute = device->make_stream({.name = "compute", .on_caller = true});
  const auto gather = device->make_stream({.name = "gather", .capacity = 8});
  std::int64_t value = 0;
  const Task task = {.run = [](void* context, std::uint64_t) { ++*static_cast<std::int64_t*>(context); },
                     .context = &value};
  const std::int64_t before = allocations_so_far();
  for (int i = 0; i < 1000; ++i) {
    gather->wait(compute->record());
    gather->run(task);
    compute->wait(gather->record());
    compute->run(task);
  }
  gather->synchronize();
  EXPECT_EQ(allocations_so_far() - before, 0);
  EXPECT_EQ(value, 2000);
}

}  // namespace
}  // namespace tessera
