#include "src/checkpoint/open_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "src/checkpoint/checksum.h"

namespace tessera::checkpoint {

void check_belongs(const OpenFile& file, int rank, const Header& first) {
  const Header& header = file.header;
  const std::string path = file.reader.path().string();
  if (header.rank != rank)
    throw EnvironmentError(
        fmt::format("checkpoint file '{}' was written by rank {}, expected {}", path, header.rank, rank));
  if (header.state.step != first.state.step || header.counters.steps_applied != first.counters.steps_applied)
    throw EnvironmentError(fmt::format(
        "checkpoint file '{}' is of step {} ({} applied), that of rank 0 of step {} ({} applied)", path,
        header.state.step, header.counters.steps_applied, first.state.step, first.counters.steps_applied));
  if (to_string(header.mesh) != to_string(first.mesh) || !(header.placements == first.placements) ||
      header.optimizer != first.optimizer || header.layout != first.layout)
    throw EnvironmentError(fmt::format(
        "checkpoint file '{}' is of another run than that of rank 0: mesh {}, optimizer {}, layout {} there; "
        "{}, {}, {} here",
        path, to_string(header.mesh), header.optimizer, header.layout, to_string(first.mesh), first.optimizer,
        first.layout));
  if (header.contents != first.contents)
    throw EnvironmentError(
        fmt::format("checkpoint file '{}' is of another save than that of rank 0, of a run alike: what the "
                    "ranks saved has hash {:016x} there, {:016x} here",
                    path, header.contents, first.contents));
}

namespace {

constexpr std::size_t kMostKept = 16;  // where parts alternate between places; else one

}  // namespace

BufferReader::Kept& BufferReader::room() {
  if (kept_.empty() || (alternates_ && kept_.size() < kMostKept)) return kept_.emplace_back();
  return *std::ranges::min_element(kept_, {}, &Kept::used);
}

std::span<const std::byte> BufferReader::load(std::int64_t block) {
  const auto known = std::ranges::find(kept_, block, &Kept::block);
  if (known != kept_.end()) {
    known->used = ++uses_;
    return known->bytes;
  }
  Kept& kept = room();
  const std::int64_t begin = block * kChecksumBytes;
  kept.block = -1;
  kept.used = ++uses_;
  kept.bytes.resize(static_cast<std::size_t>(std::min(kChecksumBytes, stored_.bytes - begin)));
  file_.read(stored_.offset + begin, kept.bytes);
  if (!stored_.blocks.empty()) {
    check(checksum_of(kept.bytes), stored_.blocks[static_cast<std::size_t>(block)]);
  } else if (block == checked_) {
    checksum_.add(kept.bytes);
    ++checked_;
  }
  kept.block = block;
  return kept.bytes;
}

void BufferReader::read(std::int64_t begin, std::int64_t end,
                        const std::function<void(std::span<const std::byte> piece)>& use) {
  while (begin < end) {
    const std::int64_t block = begin / kChecksumBytes, from = begin - block * kChecksumBytes;
    const bool known = std::ranges::find(kept_, block, &Kept::block) != kept_.end();
    const bool behind = !known && block < furthest_;
    alternates_ |= behind;
    furthest_ = std::max(furthest_, block);
    if (stored_.blocks.empty()) {  // whose checksum is of all bytes in their order
      if (behind) finish();
      while (checked_ < block) load(checked_);
    }
    const std::int64_t bytes = std::min(end - begin, kChecksumBytes - from);
    use(load(block).subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(bytes)));
    begin += bytes;
  }
}

void BufferReader::finish() {
  if (!stored_.blocks.empty()) return;
  while (checked_ < blocks_in(stored_.bytes)) load(checked_);
  check(checksum_.value(), stored_.checksum);
}

void BufferReader::check(std::uint64_t found, std::uint64_t expected) const {
  if (found != expected)
    throw EnvironmentError(fmt::format(
        "checkpoint file '{}' is damaged: checksum of the {} of unit {} is {:016x}, expected {:016x}",
        file_.path().string(), name_of(stored_.state), stored_.unit, found, expected));
}

}  // namespace tessera::checkpoint
