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

void read_buffer(const FileReader& file, const StoredBuffer& stored,
                 const std::function<void(std::span<const std::byte> piece, std::int64_t place)>& use) {
  constexpr std::int64_t kAtOnce = std::int64_t{1} << 20;  // is still in a cache when it is used
  std::vector<std::byte> memory(static_cast<std::size_t>(std::min(kAtOnce, stored.bytes)));
  Checksum checksum;
  for (std::int64_t done = 0; done < stored.bytes; done += kAtOnce) {
    const auto piece =
        std::span(memory).first(static_cast<std::size_t>(std::min(kAtOnce, stored.bytes - done)));
    file.read(stored.offset + done, piece);
    checksum.add(piece);
    use(piece, done);
  }
  if (const std::uint64_t found = checksum.value(); found != stored.checksum)
    throw EnvironmentError(fmt::format(
        "checkpoint file '{}' is damaged: checksum of the {} of unit {} is {:016x}, expected {:016x}",
        file.path().string(), name_of(stored.state), stored.unit, found, stored.checksum));
}

}  // namespace tessera::checkpoint
