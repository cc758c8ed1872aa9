// load_checkpoint(): every rank reads what it holds, from whichever files have it, after all agree that it is
// there.
#include <fmt/format.h>

#include <functional>
#include <memory>

#include "src/checkpoint/agree.h"
#include "src/checkpoint/buffers.h"
#include "src/checkpoint/folder.h"
#include "src/checkpoint/open_buffers.h"
#include "src/checkpoint/stored_states.h"

namespace tessera {

namespace {

namespace fs = std::filesystem;
using namespace checkpoint;

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
