// load_checkpoint(): every rank reads what it holds, from whichever files have it, after all agree that it is
// there.
#include <fmt/format.h>

#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "src/checkpoint/agree.h"
#include "src/checkpoint/buffers.h"
#include "src/checkpoint/folder.h"
#include "src/checkpoint/stored_states.h"

namespace tessera {

namespace {

namespace fs = std::filesystem;
using namespace checkpoint;

// The stored buffers that are being read: one of each flat and tensor rank that stored it, as runs of it
// mostly ascend.
class OpenBuffers {
 public:
  template <class Use>
  void read(const StoredRun& run, std::int64_t element, const Use& use) {
    std::unique_ptr<Open>& open = open_[{run.buffer->flat, run.tensor_rank}];
    if (!open || open->buffer != run.buffer) {
      if (open) open->reader.finish();
      open = std::make_unique<Open>(run);
    }
    open->reader.read(run.stored * element, (run.stored + run.numel) * element, use);
  }
  void finish() {
    for (const auto& [of, open] : open_) open->reader.finish();
  }

 private:
  struct Open {
    explicit Open(const StoredRun& run)
        : file(run.file->path), buffer(run.buffer), reader(file, *run.buffer) {}
    FileReader file;
    const StoredBuffer* buffer;
    BufferReader reader;
  };
  std::map<std::pair<FlatId, int>, std::unique_ptr<Open>> open_;
};

// Where each buffer of this rank comes from.
class Source {
 public:
  Source(const fs::path& folder, Engine& engine)
      : engine_(engine), stored_(folder, engine), buffers_(buffers_of(engine)) {
    for (const PersistentBuffer& buffer : buffers_) each_run(buffer, [](const StoredRun&) {});
  }

  const Header& header() const { return stored_.header(); }

  void read() {
    BufferWriter writer(engine_);
    for (const PersistentBuffer& buffer : buffers_) {
      const ElementRange held = elements_of(engine_, buffer);
      const std::int64_t element = buffer.bytes / held.numel();
      writer.begin(buffer);
      OpenBuffers open;
      each_run(buffer, [&](const StoredRun& run) {
        writer.zero_until((run.begin - held.begin) * element);  // padding
        open.read(run, element, [&](std::span<const std::byte> piece) { writer.append(piece); });
      });
      open.finish();
      writer.finish();
    }
  }

 private:
  void each_run(const PersistentBuffer& buffer, const std::function<void(const StoredRun&)>& visit) {
    const auto [begin, end] = elements_of(engine_, buffer);
    stored_.each(buffer.flat, buffer.state, begin, end, visit);
  }

  Engine& engine_;
  StoredStates stored_;
  const std::vector<PersistentBuffer> buffers_;
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
