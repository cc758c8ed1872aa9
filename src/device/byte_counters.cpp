#include "tessera/device.h"

namespace tessera {
namespace {

void raise_to(std::atomic<std::int64_t>& peak, std::int64_t value) {
  std::int64_t seen = peak.load();
  while (seen < value && !peak.compare_exchange_weak(seen, value)) {
  }
}

}  // namespace

void ByteCounters::add(Category category, std::int64_t bytes) {
  const auto index = static_cast<std::size_t>(category);
  raise_to(peak_[index], current_[index].fetch_add(bytes) + bytes);
  raise_to(peak_total_, total_.fetch_add(bytes) + bytes);
}

std::int64_t ByteCounters::current(Category category) const {
  return current_[static_cast<std::size_t>(category)].load();
}

std::int64_t ByteCounters::peak(Category category) const {
  return peak_[static_cast<std::size_t>(category)].load();
}

}  // namespace tessera
