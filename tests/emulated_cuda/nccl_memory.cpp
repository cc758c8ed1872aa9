#include "tests/emulated_cuda/nccl_memory.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <set>

#include "tests/emulated_cuda/emulator.h"

namespace tessera::emulated_cuda {
namespace {

struct Range {
  ncclComm_t communicator;
  const char* begin;
  std::size_t bytes;
};

std::mutex mutex;                        // guards these
std::map<std::uintptr_t, Range> ranges;  // by handle
std::uintptr_t handles = 0;
std::set<const void*> arenas;  // by ncclMemAlloc
std::vector<std::string> misuses;

std::atomic<int> without_memory{-1}, without_registration{-1};

bool is_current(const std::atomic<int>& gpu) {
  int current = -1;
  cudaGetDevice(&current);
  return gpu.load() == current;
}

}  // namespace

bool is_foreign(ncclComm_t communicator, const void* memory, std::size_t bytes) {
  const std::lock_guard lock(mutex);
  bool any = false;
  const char* const begin = static_cast<const char*>(memory);
  for (const auto& [handle, range] : ranges) {
    if (range.communicator != communicator) continue;
    if (begin >= range.begin && begin + bytes <= range.begin + range.bytes) return false;
    any = true;
  }
  return any;
}

bool has_registered(ncclComm_t communicator) {
  const std::lock_guard lock(mutex);
  return std::ranges::any_of(ranges,
                             [&](const auto& one) { return one.second.communicator == communicator; });
}

bool forget_registered(ncclComm_t communicator) {
  const std::lock_guard lock(mutex);
  return std::erase_if(ranges, [&](const auto& one) { return one.second.communicator == communicator; }) > 0;
}

void note_misuse(const std::string& text) {
  const std::lock_guard lock(mutex);
  misuses.push_back(text);
}

void note_freed(const void* begin) {
  const std::lock_guard lock(mutex);
  if (arenas.contains(begin)) misuses.push_back("cudaFree of what ncclMemAlloc took");
  for (const auto& [handle, range] : ranges)
    if (range.begin == begin) misuses.push_back("registered memory was given back");
}

NcclMemory nccl_memory() {
  const std::lock_guard lock(mutex);
  return {.registered = static_cast<int>(ranges.size()),
          .arenas = static_cast<int>(arenas.size()),
          .misuses = misuses};
}
void refuse_nccl_memory(int gpu) { without_memory.store(gpu); }
void refuse_nccl_registration(int gpu) { without_registration.store(gpu); }

}  // namespace tessera::emulated_cuda

using namespace tessera::emulated_cuda;

ncclResult_t ncclMemAlloc(void** memory, std::size_t bytes) {
  if (is_current(without_memory) || cudaMalloc(memory, bytes) != cudaSuccess) return ncclUnhandledCudaError;
  const std::lock_guard lock(mutex);
  return arenas.insert(*memory), ncclSuccess;
}

ncclResult_t ncclMemFree(void* memory) {
  std::size_t known = 0;
  {
    const std::lock_guard lock(mutex);
    known = arenas.erase(memory);
  }
  if (known == 0) note_misuse("ncclMemFree of other memory");
  note_freed(memory);
  return free_at_once(memory) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclCommRegister(ncclComm_t communicator, void* memory, std::size_t bytes, void** handle) {
  if (is_current(without_registration)) return ncclSystemError;
  const std::lock_guard lock(mutex);
  ranges[++handles] = {communicator, static_cast<const char*>(memory), bytes};
  return *handle = reinterpret_cast<void*>(handles), ncclSuccess;
}

ncclResult_t ncclCommDeregister(ncclComm_t communicator, void* handle) {
  const std::lock_guard lock(mutex);
  const auto found = ranges.find(reinterpret_cast<std::uintptr_t>(handle));
  if (found != ranges.end() && found->second.communicator == communicator)
    return ranges.erase(found), ncclSuccess;
  return misuses.push_back("ncclCommDeregister of what is not registered"), ncclInvalidUsage;
}
