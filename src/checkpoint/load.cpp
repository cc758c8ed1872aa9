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
    BufferWriter writer(engine_);
    for (const Move& move : moves_) {
      writer.begin(move.buffer);
      for (const StoredPiece& piece : move.pieces) read_piece(move, piece, writer);
      writer.finish();  // of padding that was not stored
    }
  }

 private:
  struct Move {
    PersistentBuffer buffer;
    std::int64_t begin = 0;  // of the flat's elements
    std::vector<StoredPiece> pieces;
  };

  // All of the piece, for its checksum; of that goes on what lies within the buffer.
  static void read_piece(const Move& move, const StoredPiece& piece, BufferWriter& writer) {
    const std::int64_t element = piece.buffer->bytes / (piece.end - piece.begin);
    // Where it begins in the buffer; before it, where the piece begins earlier.
    const std::int64_t begin = (piece.begin - move.begin) * element;
    read_buffer(
        FileReader(piece.file->path), *piece.buffer,
        [&](std::span<const std::byte> bytes, std::int64_t place) {
          const std::int64_t at = begin + place;
          const std::int64_t from = std::max<std::int64_t>(0, -at);
          const std::int64_t to = std::min(static_cast<std::int64_t>(bytes.size()), move.buffer.bytes - at);
          if (from < to)
            writer.append(bytes.subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(to - from)));
        });
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
  IdVector<Opened> all(world.world());
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
  engine.wait_for_readers();
  const std::string from = fmt::format("checkpoint '{}'", path.string());
  told_as(("load_checkpoint: " + from).c_str(), "set_counters",  // before a state changes
          [&] { engine.set_counters(source->header().counters); });
  engine.begin_loading(from);
  together(world, "checkpoint read", [&] { source->read(); });
  engine.end_loading();
  return source->header().state;
}

}  // namespace tessera
