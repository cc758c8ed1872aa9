// load_checkpoint(): every rank reads what it holds, from whichever files have it, after all agree that it is
// there.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "src/checkpoint/agree.h"
#include "src/checkpoint/buffers.h"
#include "src/checkpoint/folder.h"
#include "src/checkpoint/stored_states.h"

namespace tessera {

namespace {

namespace fs = std::filesystem;
using namespace checkpoint;

// Where each buffer of this rank comes from.
class Source {
 public:
  Source(const fs::path& folder, Engine& engine) : engine_(engine), stored_(folder, engine) {
    for (const PersistentBuffer& buffer : buffers_of(engine)) {
      const auto [begin, end] = elements_of(engine, buffer);
      moves_.push_back(
          {.buffer = buffer, .begin = begin, .pieces = stored_.find(buffer.flat, buffer.state, begin, end)});
    }
  }

  const Header& header() const { return stored_.header(); }

  void read() const {
    OnHost host(engine_);
    for (const Move& move : moves_)
      host.send(move.buffer, [&](std::span<std::byte> bytes) { fill(move, bytes); });
  }

 private:
  struct Move {
    PersistentBuffer buffer;
    std::int64_t begin = 0;  // of the flat's elements
    std::vector<StoredPiece> pieces;
  };

  static void fill(const Move& move, std::span<std::byte> bytes) {
    std::size_t filled = 0;
    for (const StoredPiece& piece : move.pieces) {
      const std::int64_t element = piece.buffer->bytes / (piece.end - piece.begin);
      // Of the buffer's bytes the first that the piece has; before it, where the piece begins earlier.
      const std::int64_t at = (piece.begin - move.begin) * element;
      filled = static_cast<std::size_t>(
          std::min(static_cast<std::int64_t>(bytes.size()), at + piece.buffer->bytes));
      if (at >= 0 && at + piece.buffer->bytes <= static_cast<std::int64_t>(bytes.size()))
        read_whole(piece, bytes.subspan(static_cast<std::size_t>(at), filled - static_cast<std::size_t>(at)));
      else
        read_part(piece, at, bytes);
    }
    std::ranges::fill(bytes.subspan(filled), std::byte{0});  // padding that was not stored
  }

  static void read_whole(const StoredPiece& piece, std::span<std::byte> to) {
    FileReader(piece.file->path).read(piece.buffer->offset, to);
    check_checksum(piece.file->path, *piece.buffer, checksum_of(to));
  }

  // All of the piece, for its checksum; what lies within `bytes`, `at` bytes behind whose begin it begins, is
  // kept.
  static void read_part(const StoredPiece& piece, std::int64_t at, std::span<std::byte> bytes) {
    constexpr std::int64_t kAtOnce = std::int64_t{4} << 20;
    std::vector<std::byte> chunk(static_cast<std::size_t>(std::min(kAtOnce, piece.buffer->bytes)));
    const FileReader file(piece.file->path);
    Checksum checksum;
    for (std::int64_t done = 0; done < piece.buffer->bytes; done += kAtOnce) {
      const auto read =
          std::span(chunk).first(static_cast<std::size_t>(std::min(kAtOnce, piece.buffer->bytes - done)));
      file.read(piece.buffer->offset + done, read);
      checksum.add(read);
      const std::int64_t from = std::max<std::int64_t>(0, -(at + done));
      const std::int64_t to = std::min(static_cast<std::int64_t>(read.size()),
                                       static_cast<std::int64_t>(bytes.size()) - (at + done));
      if (from < to) std::copy(read.begin() + from, read.begin() + to, bytes.begin() + (at + done + from));
    }
    check_checksum(piece.file->path, *piece.buffer, checksum.value());
  }

  Engine& engine_;
  StoredStates stored_;
  std::vector<Move> moves_;
};

// Ranks may see different folders, or the newest checkpoint at different times.
void check_same_checkpoint(Communicator& world, const fs::path& path, const Header& header) {
  struct Opened {
    std::uint64_t checksum;
    std::int64_t step;
    std::int64_t rank;
  };
  const Opened own{header.checksum, header.state.step, world.global_rank()};
  std::vector<Opened> all(static_cast<std::size_t>(world.world()));
  world.all_gather(&own, all.data(), sizeof own, {"checkpoint", "comparing what was opened"});
  for (const Opened& opened : all)
    if (opened.checksum != all[0].checksum)
      throw EnvironmentError(fmt::format(
          "checkpoint '{}': rank {} finds step {} ({:016x}) there, rank {} step {} ({:016x}); all "
          "ranks must see the same folder",
          path.string(), opened.rank, opened.step, opened.checksum, all[0].rank, all[0].step,
          all[0].checksum));
}

}  // namespace

RunState load_checkpoint(const fs::path& path, Communicator world, Engine& engine) {
  check_arguments("load_checkpoint", world, engine);
  std::unique_ptr<Source> source;
  // All is checked on every rank before the first byte of any engine changes.
  together(world, "checkpoint open", [&] { source = std::make_unique<Source>(resolve(path), engine); });
  check_same_checkpoint(world, path, source->header());
  together(world, "checkpoint read", [&] { source->read(); });
  engine.set_counters(source->header().counters);
  return source->header().state;
}

}  // namespace tessera
