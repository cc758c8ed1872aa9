#include "tests/emulated_cuda/block_memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <deque>
#include <vector>

#include "tests/emulated_cuda/emulator.h"
#include "tests/emulated_cuda/fibers.h"
#include "tests/emulated_cuda/memory.h"

namespace tessera::emulated_cuda {
namespace {

constexpr std::size_t kCopiedBytes = 16;  // of an asynchronous copy, which aligns dynamic shared memory, too
constexpr std::size_t kMostBytes = 228 * 1024;  // of any GPU's block
static_assert(kMostBytes % kPage == 0);

struct Copy {
  void* to;
  const void* from;
  void run() const { std::memcpy(to, from, kCopiedBytes); }
};
using Copies = std::deque<std::vector<Copy>>;  // on their way, by group; the last one is not closed

std::vector<Copies> copies_of_fibers;
bool arrive_late = false;
std::byte* dynamic_begin = nullptr;
std::size_t dynamic_bytes = 0;

// Where the largest dynamic shared memory ends, before a page that nobody may touch.
std::byte* end_of_dynamic() {
  static std::byte* const end = [] {
    void* const begin =
        mmap(nullptr, kMostBytes + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (begin == MAP_FAILED) fail("there is no memory for shared memory");
    std::byte* const behind = static_cast<std::byte*>(begin) + kMostBytes;
    mprotect(behind, kPage, PROT_NONE);
    return behind;
  }();
  return end;
}

}  // namespace

void begin_block_memory(const Kernel& kernel, std::size_t shared_bytes, std::size_t threads,
                        bool copies_arrive_late) {
  for (const auto variable : kernel.shared) std::memset(variable.data(), 0xFF, variable.size());
  dynamic_bytes = (shared_bytes + kCopiedBytes - 1) / kCopiedBytes * kCopiedBytes;
  dynamic_begin = end_of_dynamic() - dynamic_bytes;
  std::memset(dynamic_begin, 0xFF, dynamic_bytes);
  arrive_late = copies_arrive_late;
  copies_of_fibers.resize(threads);
  for (Copies& copies : copies_of_fibers)
    if (copies.size() != 1 || !copies[0].empty()) copies.assign(1, {});
}

float* dynamic_shared() { return reinterpret_cast<float*>(dynamic_begin); }

void copy_async(void* shared, const void* from) {
  const auto place = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p); };
  const std::uintptr_t begin = place(dynamic_begin), end = begin + dynamic_bytes;
  if ((place(shared) | place(from)) % kCopiedBytes != 0 || place(shared) < begin ||
      place(shared) + kCopiedBytes > end)
    fail("an asynchronous copy of 16 bytes that a GPU would refuse");
  const Copy copy = {shared, from};
  if (arrive_late)
    copies_of_fibers[running_fiber()].back().push_back(copy);
  else
    copy.run();
}

void close_copies() { copies_of_fibers[running_fiber()].emplace_back(); }

void wait_for_copies(std::size_t open) {
  auto& copies = copies_of_fibers[running_fiber()];
  while (copies.size() > open + 1) {
    for (const Copy& copy : copies.front()) copy.run();
    copies.pop_front();
  }
}

}  // namespace tessera::emulated_cuda
