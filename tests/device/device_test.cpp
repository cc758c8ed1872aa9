// Devices by their common interface, and making a GPU's where there is none.
#include <gtest/gtest.h>

#include <cstring>

#include "src/device/activity.h"
#include "src/device/ticket_ring.h"
#include "tessera/device.h"
#include "tessera/error.h"
#include "tessera/machine.h"

namespace tessera {
namespace {

using device::Activity;
using device::TicketRing;

TEST(CudaMachine, HasGpusOrSaysWhyNot) {
  const CudaMachine machine = read_cuda_machine();
  EXPECT_NE(machine.gpus.empty(), machine.unusable.empty());
  if (machine.cuda.empty()) {
    EXPECT_NE(machine.unusable.find("TESSERA_WITH_CUDA"), std::string::npos) << machine.unusable;
    EXPECT_TRUE(machine.nccl.empty() && machine.cudnn.empty() && machine.driver.empty());
  } else if (machine.driver.empty()) {
    EXPECT_TRUE(machine.unusable.starts_with("no NVIDIA driver is installed; this build's CUDA "))
        << machine.unusable;
  }
}

TEST(CudaDevice, IsRefusedWithTheReason) {
  const CudaMachine machine = read_cuda_machine();
  if (machine.unusable.empty()) GTEST_SKIP() << "this machine has a GPU";
  try {
    make_cuda_device({.rank = 3});
    FAIL() << "made one";
  } catch (const UnsupportedError& error) {
    EXPECT_TRUE(machine.cuda.empty());
    EXPECT_NE(std::string(error.what()).find("TESSERA_WITH_CUDA"), std::string::npos) << error.what();
  } catch (const EnvironmentError& error) {
    EXPECT_FALSE(machine.cuda.empty());
    EXPECT_EQ(error.what(), "rank 3: no GPU can be used: " + machine.unusable);
  }
}

TEST(CpuDevice, CopiesAndFillsInTheOrderOfTheStream) {
  struct Work {
    Device& device;
    Stream& stream;
    Arena &arena, &host;
  };
  const auto device = make_cpu_device({});
  EXPECT_EQ(device->type(), DeviceType::cpu);
  const auto stream = device->make_stream({.name = "lane"});
  EXPECT_EQ(stream->native(), nullptr);
  Arena arena = device->make_arena(64), host = device->make_host_arena(64);
  EXPECT_EQ(host.bytes(), 64);
  std::memset(host.base(), 5, 64);
  Work work{*device, *stream, arena, host};
  stream->run({.run =
                   [](void* context, std::uint64_t) {
                     auto& [on, in, to, from] = *static_cast<Work*>(context);
                     on.copy(in, to.base(), from.base(), 64);
                     on.fill(in, from.base() + 8, 0, 56);
                     on.copy(in, to.base(), from.base() + 8, 4);
                     on.copy(in, nullptr, nullptr, 0);
                   },
               .context = &work});
  stream->synchronize();
  for (int i = 0; i < 64; ++i) {
    EXPECT_EQ(arena.base()[i], std::byte(i < 4 ? 0 : 5));
    EXPECT_EQ(host.base()[i], std::byte(i < 8 ? 5 : 0));
  }
}

// Memory that notes what is done with it.
struct Notes {
  bool freed = false;
  std::vector<std::int64_t> fills;  // offset, bytes, value
};
class NotedMemory final : public ArenaMemory {
 public:
  explicit NotedMemory(Notes& notes) : notes_(notes) {}
  ~NotedMemory() override { notes_.freed = true; }
  std::byte* base() const override { return reinterpret_cast<std::byte*>(0x1000); }
  void fill(std::int64_t offset, std::int64_t bytes, int value) override {
    notes_.fills.insert(notes_.fills.end(), {offset, bytes, value});
  }

 private:
  Notes& notes_;
};

TEST(Arena, OfADeviceIsNeverTouchedByTheHost) {
  Notes notes;
  Arena arena(std::make_unique<NotedMemory>(notes), 4096, true);
  EXPECT_EQ(arena.base(), reinterpret_cast<std::byte*>(0x1000));
  EXPECT_EQ(arena.bytes(), 4096);
  arena.poison(256, 512);
  arena.poison(256, 0);
  arena.unpoison(256, 512);
  EXPECT_EQ(notes.fills, (std::vector<std::int64_t>{256, 512, 0xFF}));
  EXPECT_THROW(arena.poison(4000, 128), UsageError);

  Arena moved = std::move(arena);
  EXPECT_FALSE(notes.freed);
  bool before = false;  // who is attached goes first
  moved.attach(std::shared_ptr<void>(nullptr, [&](void*) { before = !notes.freed; }));
  moved = Arena();
  EXPECT_TRUE(notes.freed);
  EXPECT_TRUE(before);

  Notes plain;
  Arena(std::make_unique<NotedMemory>(plain), 4096, false).poison(256, 512);
  EXPECT_TRUE(plain.fills.empty());
}

TEST(TicketRing, ATicketKeepsItsSlotUntilTheOneThatReplacesIt) {
  for (const int capacity : {1, 2, 3, 1024}) {
    const TicketRing ring(capacity);
    const auto slots = static_cast<std::uint64_t>(capacity);
    for (std::uint64_t ticket = 1; ticket <= 3 * slots; ++ticket) {
      ASSERT_LT(ring.slot(ticket), slots);
      for (std::uint64_t later = ticket + 1; later < ticket + slots; ++later)
        ASSERT_NE(ring.slot(ticket), ring.slot(later));
      ASSERT_EQ(ring.slot(ticket), ring.slot(ticket + slots));
      ASSERT_EQ(ring.replaced_by(ticket + slots), ticket);
    }
    EXPECT_EQ(ring.replaced_by(slots), 0u);
  }
}

std::string text_of(const void* context) { return static_cast<const char*>(context); }

TEST(Activity, NestsAndEnds) {
  EXPECT_EQ(Activity::current(), "");
  {
    const Activity outer(&text_of, "rank 2");
    EXPECT_EQ(Activity::current(), "rank 2");
    {
      const Activity inner(&text_of, "gather of block.3");
      EXPECT_EQ(Activity::current(), "rank 2: gather of block.3");
    }
    EXPECT_EQ(Activity::current(), "rank 2");
  }
  EXPECT_EQ(Activity::current(), "");
}

}  // namespace
}  // namespace tessera
