#include "src/device/uploads.h"

#include <algorithm>

namespace tessera::device {

Uploads::Uploads(Device& device, Stream& stream) : device_(device), stream_(stream) {
  if (device.type() != DeviceType::cpu)
    pieces_ = device.make_host_arena(static_cast<std::int64_t>(read_.size()) * kPieceBytes);
}

void Uploads::copy(std::byte* to, const std::byte* from, std::int64_t bytes) {
  if (pieces_.bytes() == 0) return device_.copy(stream_, to, from, bytes);
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

}  // namespace tessera::device
