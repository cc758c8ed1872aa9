// Persistent buffers, whichever space they lie in, to and from memory of the host: between steps, or read
// beside them.
#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/elementwise.h"
#include "src/engine/executor.h"
#include "tessera/engine.h"

namespace tessera {

// Blocks of the disk that hold bytes of it, by way of memory that is taken once for all pieces of a range.
class Executor::Blocks {
 public:
  explicit Blocks(std::size_t most)
      : memory_(
            {.bytes = round_up(std::min(static_cast<std::int64_t>(most), Engine::kPieceBytes) + kBlockBytes,
                               kBlockBytes),
             .huge_pages = false}) {}

  // Calls use(Piece) for all of [offset, offset + bytes), in order.
  template <class Use>
  void each(std::int64_t offset, std::size_t bytes, const Use& use) {
    const auto end = offset + static_cast<std::int64_t>(bytes);
    for (std::int64_t at = offset; at < end;) {
      const std::int64_t first = at / kBlockBytes * kBlockBytes;
      const std::int64_t last = std::min(end, first + memory_.bytes());
      const std::int64_t whole = round_up(last - first, kBlockBytes);
      use(Piece{.first = first,
                .bytes = whole,
                .memory = memory_.base(),
                .wanted = {memory_.base() + (at - first), static_cast<std::size_t>(last - at)},
                .place = static_cast<std::size_t>(at - offset)});
      at = last;
    }
  }

  struct Piece {
    std::int64_t first, bytes;  // on the disk, whole blocks
    std::byte* memory;
    std::span<std::byte> wanted;  // of the memory
    std::size_t place;            // of that in the range
  };

 private:
  Arena memory_;
};

void Executor::read_persistent(BufferId buffer, std::int64_t offset, std::span<std::byte> to) {
  if (programs_[0].buffers[buffer].space != Space::disk)
    return transfer(to.data(), persistent_address(0, buffer) + offset, static_cast<std::int64_t>(to.size()));
  Blocks(to.size()).each(memory_.disk_offset(0, buffer) + offset, to.size(), [&](const Blocks::Piece& piece) {
    memory_.disk().read(piece.first, piece.memory, piece.bytes);
    std::ranges::copy(piece.wanted, to.begin() + static_cast<std::ptrdiff_t>(piece.place));
  });
}

void Executor::write_persistent(BufferId buffer, std::int64_t offset, std::span<const std::byte> from) {
  if (programs_[0].buffers[buffer].space != Space::disk)
    return transfer(persistent_address(0, buffer) + offset, from.data(),
                    static_cast<std::int64_t>(from.size()));
  Blocks(from.size())
      .each(memory_.disk_offset(0, buffer) + offset, from.size(), [&](const Blocks::Piece& piece) {
        if (piece.bytes != static_cast<std::int64_t>(piece.wanted.size()))  // what lies beside it stays
          memory_.disk().read(piece.first, piece.memory, piece.bytes);
        std::ranges::copy(from.subspan(piece.place, piece.wanted.size()), piece.wanted.begin());
        memory_.disk().write(piece.first, piece.memory, piece.bytes);
      });
}

void Executor::open_beside() {
  if (device_.type() == DeviceType::cpu) return;
  lane(Lane::compute).synchronize();  // what was enqueued between steps
  if (beside_) return;
  beside_memory_ = device_.make_host_arena(Engine::kPieceBytes);
  beside_ = device_.make_stream({.name = "states", .on_caller = true, .cpus = {}, .urgent = false});
}

void Executor::read_beside(BufferId buffer, std::int64_t offset, std::span<std::byte> to) const {
  const std::byte* from = persistent_address(0, buffer) + offset;
  if (!beside_ || programs_[0].buffers[buffer].space == Space::host) {
    std::memcpy(to.data(), from, to.size());
    return;
  }
  while (!to.empty()) {
    const std::lock_guard lock(beside_mutex_);
    const std::size_t bytes = std::min(to.size(), static_cast<std::size_t>(beside_memory_.bytes()));
    device_.copy(*beside_, beside_memory_.base(), from, static_cast<std::int64_t>(bytes));
    beside_->synchronize();
    std::memcpy(to.data(), beside_memory_.base(), bytes);
    from += bytes;
    to = to.subspan(bytes);
  }
}

void Executor::clear_persistent(BufferId buffer) {
  const Buffer& cleared = programs_[0].buffers[buffer];
  if (cleared.space == Space::device) return zero(persistent_address(0, buffer), cleared.bytes);
  if (cleared.space == Space::host && cleared.bytes % 4 == 0) {
    lane(Lane::compute).synchronize();  // what comes before may use it
    return kernels::fill({.threads = options_.threads_per_rank, .workspace = {}}, DType::fp32,
                         cleared.bytes / 4, 0.0f, persistent_address(0, buffer));
  }
  const std::vector<std::byte> nothing(
      static_cast<std::size_t>(std::min(Engine::kPieceBytes, cleared.bytes)));
  for (std::int64_t done = 0; done < cleared.bytes; done += Engine::kPieceBytes)
    write_persistent(buffer, done,
                     std::span(nothing).first(
                         static_cast<std::size_t>(std::min(Engine::kPieceBytes, cleared.bytes - done))));
}

}  // namespace tessera
