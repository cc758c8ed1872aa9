#include <gtest/gtest.h>
#include <sanitizer/asan_interface.h>
#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <string>

#include "tessera/device.h"
#include "tessera/error.h"
#include "tessera/machine.h"

namespace tessera {
namespace {

std::uintptr_t address(const Arena& arena) { return reinterpret_cast<std::uintptr_t>(arena.base()); }

TEST(Arena, TakesExactlyItsBytesZeroed) {
  for (std::int64_t bytes : {1, 4096, 1 << 20, (5 << 20) + 13}) {
    const Arena arena({.bytes = bytes});
    EXPECT_EQ(arena.bytes(), bytes);
    EXPECT_EQ(address(arena) % (2 << 20), 0u);
    for (std::int64_t i = 0; i < bytes; i += 997) ASSERT_EQ(arena.base()[i], std::byte{0});
    std::memset(arena.base(), 1, static_cast<std::size_t>(bytes));
  }
}

// VmSize: the bytes of address space this process has mapped.
std::int64_t mapped_bytes() {
  std::ifstream file("/proc/self/status");
  std::int64_t kibibytes = 0;
  for (std::string word; file >> word;)
    if (word == "VmSize:") file >> kibibytes;
  return kibibytes * 1024;
}

TEST(Arena, MapsItsPagesAndNoMore) {
  mapped_bytes();  // what reading allocates is there before the first figure
  const std::int64_t before = mapped_bytes();
  {
    const std::int64_t bytes = (3 << 20) + 100;
    const Arena arena({.bytes = bytes, .stagger_bytes = 5376});
    EXPECT_GE(mapped_bytes() - before, bytes);
    EXPECT_LE(mapped_bytes() - before, bytes + 2 * 4096);
  }
  EXPECT_EQ(mapped_bytes(), before);
}

TEST(Arena, HasAddressSpaceBeforeItThatTakesNoMemory) {
  constexpr std::int64_t kBefore = (std::int64_t{1} << 36) + 12345;  // 64 GiB
  const std::int64_t resident = read_process_memory().resident_bytes;
  const std::int64_t mapped = mapped_bytes();
  for (const bool shared : {false, true}) {
    Arena arena({.bytes = 5 << 20, .stagger_bytes = 5376, .shared = shared, .address_space_before = kBefore});
    EXPECT_EQ(arena.address_space_before(), kBefore);
    EXPECT_EQ(address(arena) % (2 << 20), 5376u);
    std::memset(arena.base(), 7, 5 << 20);
    EXPECT_GE(mapped_bytes() - mapped, kBefore);
    EXPECT_LT(read_process_memory().resident_bytes - resident, 32 << 20);
    // All of it belongs to this mapping: nothing else is given there.
    std::byte* const first = arena.base() - kBefore;
    EXPECT_EQ(mmap(reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(first) / 4096 * 4096), 4096,
                   PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0),
              MAP_FAILED);
    EXPECT_DEATH(*static_cast<volatile std::byte*>(first) = std::byte{1}, "");
    Arena moved = std::move(arena);
    EXPECT_EQ(moved.address_space_before(), kBefore);
    moved = Arena();
    EXPECT_EQ(moved.address_space_before(), 0);
  }
  EXPECT_EQ(mapped_bytes(), mapped);
  EXPECT_THROW(Arena({.bytes = 1, .address_space_before = -1}), UsageError);
}

TEST(Arena, ComesWithoutAddressSpaceBeforeItWhereThatIsRefused) {
  Arena arena({.bytes = 1 << 20, .address_space_before = std::int64_t{1} << 50});
  EXPECT_EQ(arena.address_space_before(), 0);
  std::memset(arena.base(), 7, 1 << 20);
}

TEST(Arena, StaggersRanksOfADevice) {
  const auto rank0 = make_cpu_device({.rank = 0}), rank1 = make_cpu_device({.rank = 1});
  const Arena a = rank0->make_arena(1 << 20), b = rank1->make_arena(1 << 20);
  EXPECT_NE(address(a) % 4096, address(b) % 4096);
  EXPECT_EQ(address(a) % 256, 0u);
  EXPECT_EQ(address(b) % 256, 0u);
}

TEST(Arena, NamesTheBytesItCannotTake) {
  try {
    const Arena arena({.bytes = std::int64_t{1} << 55});
    FAIL() << "took 32 PiB";
  } catch (const EnvironmentError& error) {
    EXPECT_NE(std::string(error.what()).find("36028797018963968 bytes"), std::string::npos) << error.what();
  }
  EXPECT_THROW(Arena({.bytes = std::int64_t{1} << 62}), EnvironmentError);
  EXPECT_THROW(Arena({.bytes = -1}), UsageError);
  EXPECT_THROW(Arena({.bytes = 1, .stagger_bytes = 8}), UsageError);
}

TEST(Arena, MovesAndGivesBack) {
  Arena first({.bytes = 64 << 20});
  std::byte* base = first.base();
  Arena second = std::move(first);
  EXPECT_EQ(second.base(), base);
  EXPECT_EQ(first.bytes(), 0);  // NOLINT(bugprone-use-after-move): the state after a move is promised
  second = Arena();
  EXPECT_EQ(second.base(), nullptr);
  EXPECT_EQ(Arena({.bytes = 0}).base(), nullptr);
}

TEST(Arena, SharedOnesCanBeMappedThroughTheirFile) {
  constexpr std::int64_t kBytes = (5 << 20) + 13;
  Arena arena({.bytes = kBytes, .stagger_bytes = 5376, .shared = true});
  const ArenaFile file = arena.file();
  ASSERT_GE(file.descriptor, 0);
  EXPECT_GE(file.bytes, file.base_offset + kBytes);
  EXPECT_LT(file.bytes, file.base_offset + kBytes + 4096);
  EXPECT_EQ(address(arena) % (2 << 20), 5376u);
  for (std::int64_t i = 0; i < kBytes; ++i) ASSERT_EQ(arena.base()[i], std::byte{0});
  const auto bytes = static_cast<std::size_t>(file.bytes);
  auto* const view = static_cast<std::byte*>(mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.descriptor, 0));
  ASSERT_NE(view, MAP_FAILED);
  Arena moved = std::move(arena);
  moved.base()[kBytes - 1] = std::byte{9};
  EXPECT_EQ(view[file.base_offset + kBytes - 1], std::byte{9});
  EXPECT_EQ(moved.file().descriptor, file.descriptor);

  bool read = false;  // by who is attached, while the memory is still there
  moved.attach(std::shared_ptr<void>(
      nullptr, [&, base = moved.base()](void*) { read = base[kBytes - 1] == std::byte{9}; }));
  moved = Arena();
  EXPECT_TRUE(read);
  munmap(view, bytes);
}

TEST(Arena, SharedOnesHaveAllTheirPagesFromTheStart) {
  const std::int64_t before = read_process_memory().resident_bytes;
  const Arena arena({.bytes = 64 << 20, .shared = true});
  EXPECT_GE(read_process_memory().resident_bytes - before, 63 << 20);
  const Arena other({.bytes = 64 << 20});
  EXPECT_EQ(other.file().descriptor, -1);
  EXPECT_LT(read_process_memory().resident_bytes - before, 96 << 20);
}

TEST(Arena, PoisonIsSeenByTheSanitizerAndFillsWithNan) {
  Arena arena({.bytes = 4096, .fill_poisoned = true});
  arena.poison(256, 512);
  arena.poison(256, 512);  // again is allowed
#if defined(__SANITIZE_ADDRESS__)
  EXPECT_TRUE(__asan_address_is_poisoned(arena.base() + 256));
  EXPECT_TRUE(__asan_address_is_poisoned(arena.base() + 767));
  EXPECT_FALSE(__asan_address_is_poisoned(arena.base() + 255));
  EXPECT_FALSE(__asan_address_is_poisoned(arena.base() + 768));
#endif
  arena.unpoison(256, 512);
  float value = 0;
  std::memcpy(&value, arena.base() + 256, sizeof value);
  EXPECT_TRUE(std::isnan(value));
  EXPECT_EQ(arena.base()[255], std::byte{0});
  EXPECT_EQ(arena.base()[768], std::byte{0});
  arena.base()[300] = std::byte{1};
  EXPECT_THROW(arena.poison(4000, 100), UsageError);
  EXPECT_THROW(arena.unpoison(-8, 8), UsageError);
}

TEST(Arena, PoisonDoesNotOutliveIt) {
  std::byte* base = nullptr;
  {
    Arena arena({.bytes = 2 << 20});
    base = arena.base();
    arena.poison(0, arena.bytes());
  }
  for (int i = 0; i < 8; ++i) {  // likely to get the same addresses
    const Arena arena({.bytes = 2 << 20});
    arena.base()[0] = std::byte{1};
    if (arena.base() == base) break;
  }
}

}  // namespace
}  // namespace tessera
