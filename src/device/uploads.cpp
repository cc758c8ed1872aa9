#include "src/device/uploads.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tessera/error.h"
#include "tessera/shape.h"

namespace tessera::device {
namespace {

constexpr std::int64_t kCapturedAlignment = 64;

std::int64_t captured_size(std::int64_t bytes) { return round_up(bytes, kCapturedAlignment); }

}  // namespace

Uploads::Uploads(Device& device, Stream& stream) : device_(device), stream_(stream) {
  if (device.type() != DeviceType::cpu)
    pieces_ = device.make_host_arena(static_cast<std::int64_t>(read_.size()) * kPieceBytes);
}

void Uploads::copy(std::byte* to, const std::byte* from, std::int64_t bytes) {
  if (pieces_.bytes() == 0) return device_.copy(stream_, to, from, bytes);
  if (!replayed_.empty()) {
    const std::span<std::byte> piece = next_replayed();
    if (static_cast<std::int64_t>(piece.size()) != bytes)
      throw UsageError(fmt::format("replay: an upload of {} bytes, which had {} when the step was captured",
                                   bytes, piece.size()));
    std::copy_n(from, bytes, piece.data());
    return;
  }
  captured_bytes_ += captured_size(bytes);
  if (captures_) return capture(to, from, bytes);
  for (std::int64_t done = 0; done < bytes; done += kPieceBytes) {
    const std::int64_t piece = std::min(kPieceBytes, bytes - done);
    std::byte* pinned = pieces_.base() + static_cast<std::int64_t>(next_) * kPieceBytes;
    if (read_[next_].stream) stream_.synchronize(read_[next_]);
    std::copy_n(from + done, piece, pinned);
    device_.copy(stream_, to + done, pinned, piece);
    read_[next_] = stream_.record();
    next_ = (next_ + 1) % read_.size();
  }
}

void Uploads::begin_capture(std::int64_t bytes) {
  captured_ = {.memory = device_.make_host_arena(bytes), .pieces = {}};
  used_bytes_ = 0;
  captures_ = true;
}

Uploads::Captured Uploads::end_capture() {
  captures_ = false;
  return std::exchange(captured_, {});
}

std::span<std::byte> Uploads::next_replayed() {
  const std::span<std::byte> piece = replayed_.front();
  replayed_ = replayed_.subspan(1);
  return piece;
}

void Uploads::end_replay() {
  const std::size_t left = std::exchange(replayed_, {}).size();
  if (left > 0)
    throw UsageError(fmt::format("replay: {} of the captured step's uploads were not made again", left));
}

void Uploads::capture(std::byte* to, const std::byte* from, std::int64_t bytes) {
  if (used_bytes_ + captured_size(bytes) > captured_.memory.bytes())
    throw EnvironmentError(fmt::format("a captured step uploads more than the {} bytes of the one before",
                                       captured_.memory.bytes()));
  std::byte* const pinned = captured_.memory.base() + used_bytes_;
  used_bytes_ += captured_size(bytes);
  std::copy_n(from, bytes, pinned);
  captured_.pieces.emplace_back(pinned, static_cast<std::size_t>(bytes));
  device_.copy(stream_, to, pinned, bytes);
}

}  // namespace tessera::device
