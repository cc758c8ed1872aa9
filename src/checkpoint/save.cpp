// save_checkpoint(): every rank writes its file, rank 0 the folder around them.
#include <fmt/format.h>

#include "src/checkpoint/agree.h"
#include "src/checkpoint/buffers.h"
#include "src/checkpoint/folder.h"
#include "src/checkpoint/header.h"
#include "src/checkpoint/replace.h"

namespace tessera {

namespace {

namespace fs = std::filesystem;
using namespace checkpoint;

// This rank's file; none where it has nothing to store.
void write_file(const fs::path& folder, Engine& engine, const RunState& state) {
  Header header = describe(engine);
  header.state = state;
  header.counters = engine.counters();
  std::vector<PersistentBuffer> stored;
  OnHost host(engine);
  for (const PersistentBuffer& buffer : buffers_of(engine)) {
    if (storing_rank(header.mesh, header.rank, buffer) != header.rank) continue;
    stored.push_back(buffer);
    const Layout& layout = engine.layout();
    header.buffers.push_back(
        {.unit = layout.units().at(static_cast<std::size_t>(layout.flat(buffer.flat).unit)).name,
         .flat = buffer.flat,
         .state = buffer.state,
         .whole = buffer.whole,
         .bytes = buffer.bytes,
         .checksum = checksum_of(host.bring(buffer))});
  }
  if (stored.empty() && header.rank != 0) return;
  const std::vector<std::byte> head = encode(header);
  FileWriter file(folder / file_name(header.rank), header.file_bytes);
  file.write(head);
  for (std::size_t i = 0; i < stored.size(); ++i) {
    file.pad_to(header.buffers[i].offset);
    file.write(host.bring(stored[i]));
  }
  file.finish();
}

// Removes the temporary folder unless it was renamed; on rank 0 only.
struct Cleanup {
  fs::path path;
  ~Cleanup() {
    std::error_code ignored;
    if (!path.empty()) fs::remove_all(path, ignored);
  }
};

void publish(const fs::path& folder, const fs::path& temporary, const fs::path& final, int keep) {
  sync_folder(temporary);
  replace_folder(temporary, final);
  sync_folder(folder);
  replace_text(folder / kLatest, final.filename().string() + "\n");
  sync_folder(folder);
  prune(folder, keep, final);
}

}  // namespace

fs::path save_checkpoint(const fs::path& folder, Communicator world, Engine& engine, const RunState& state,
                         int keep) {
  if (keep < 1) throw UsageError(fmt::format("keep is {}; at least the checkpoint itself stays: 1", keep));
  if (state.step < 0) throw UsageError(fmt::format("step is {}; it must be 0 or more", state.step));
  engine.finish_updates();
  const std::string name = step_name(state.step);
  const fs::path temporary = folder / (name + ".tmp");
  fs::path final = folder / name;
  const bool first = engine.rank() == 0;

  Cleanup cleanup;
  together(world, "checkpoint folder", [&] {
    if (!first) return;
    fs::create_directories(folder);
    remove_temporaries(folder);
    cleanup.path = temporary;
    fs::create_directory(temporary);
  });
  together(world, "checkpoint files", [&] { write_file(temporary, engine, state); });
  together(world, "checkpoint rename", [&] {
    if (first) publish(folder, temporary, final, keep);
  });
  return final;
}

}  // namespace tessera
