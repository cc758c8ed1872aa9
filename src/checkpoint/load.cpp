// load_checkpoint(): every rank reads what it holds, after all agree that it is there.
#include <fmt/format.h>

#include <map>
#include <memory>

#include "src/checkpoint/agree.h"
#include "src/checkpoint/buffers.h"
#include "src/checkpoint/folder.h"
#include "src/checkpoint/open_file.h"

namespace tessera {

namespace {

namespace fs = std::filesystem;
using namespace checkpoint;

// The files that hold what this rank needs, and which buffer comes from where.
class Source {
 public:
  Source(const fs::path& folder, Engine& engine) : engine_(engine), buffers_(buffers_of(engine)) {
    const Header here = describe(engine);
    open(folder, here, 0);  // holds the run's state even where it stores no buffer
    for (const PersistentBuffer& buffer : buffers_) {
      const OpenFile& file = open(folder, here, storing_rank(here.mesh, here.rank, buffer));
      stored_.push_back(&find(file, buffer));
      from_.push_back(&file);
    }
  }

  const Header& header() const { return files_.at(0)->header; }

  void read() const {
    OnHost host(engine_);
    for (std::size_t i = 0; i < buffers_.size(); ++i)
      host.send(buffers_[i], [&](std::span<std::byte> bytes) {
        from_[i]->reader.read(stored_[i]->offset, bytes);
        check_checksum(*from_[i], *stored_[i], bytes);
      });
  }

 private:
  const OpenFile& open(const fs::path& folder, const Header& here, int rank) {
    std::unique_ptr<OpenFile>& file = files_[rank];
    if (file) return *file;
    file = std::make_unique<OpenFile>(folder / file_name(rank));
    check_same(file->header, here, file->reader.path().string());
    check_belongs(*file, rank, files_.at(0)->header);
    return *file;
  }

  static const StoredBuffer& find(const OpenFile& file, const PersistentBuffer& buffer) {
    for (const StoredBuffer& stored : file.header.buffers)
      if (stored.flat == buffer.flat && stored.state == buffer.state && stored.whole == buffer.whole &&
          stored.bytes == buffer.bytes)
        return stored;
    throw EnvironmentError(fmt::format(
        "checkpoint file '{}' has no {} of {} bytes for flat buffer {}; a pipeline has to be cut, and "
        "states to be sliced over replicas, as when it was saved",
        file.reader.path().string(), checkpoint::name_of(buffer.state), buffer.bytes, buffer.flat));
  }

  Engine& engine_;
  std::vector<PersistentBuffer> buffers_;
  std::map<int, std::unique_ptr<OpenFile>> files_;  // by the rank that wrote
  std::vector<const StoredBuffer*> stored_;         // by buffer
  std::vector<const OpenFile*> from_;               // by buffer
};

// Ranks may see different folders, or the newest checkpoint at different times.
void check_same_checkpoint(Communicator& world, const fs::path& path, const Header& header) {
  struct Opened {
    std::uint64_t checksum;
    std::int64_t step;
  };
  const Opened own{header.checksum, header.state.step};
  std::vector<Opened> all(static_cast<std::size_t>(world.world()));
  world.all_gather(&own, all.data(), sizeof own, {"checkpoint", "comparing what was opened"});
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank].checksum != all[0].checksum)
      throw EnvironmentError(
          fmt::format("checkpoint '{}': rank {} finds step {} ({:016x}) there, rank 0 step {} ({:016x}); all "
                      "ranks must see the same folder",
                      path.string(), rank, all[rank].step, all[rank].checksum, all[0].step, all[0].checksum));
}

}  // namespace

RunState load_checkpoint(const fs::path& path, Communicator world, Engine& engine) {
  engine.finish_updates();
  std::unique_ptr<Source> source;
  // All is checked on every rank before the first byte of any engine changes.
  together(world, "checkpoint open", [&] { source = std::make_unique<Source>(resolve(path), engine); });
  check_same_checkpoint(world, path, source->header());
  together(world, "checkpoint read", [&] { source->read(); });
  engine.set_counters(source->header().counters);
  return source->header().state;
}

}  // namespace tessera
