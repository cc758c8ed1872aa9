// save_checkpoint(): every rank writes its file, rank 0 the folder around them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "src/checkpoint/agree.h"
#include "src/checkpoint/buffers.h"
#include "src/checkpoint/checksum.h"
#include "src/checkpoint/folder.h"
#include "src/checkpoint/header.h"
#include "src/checkpoint/lock.h"
#include "src/checkpoint/replace.h"

namespace tessera {

namespace {

namespace fs = std::filesystem;
using namespace checkpoint;

// Texts may differ, as paths do that are of one host; numbers may not.
void check_alike(Communicator& world, const RunState& state, int keep) {
  constexpr std::array kNames{"step", "samples", "tokens", "keep"};
  using Numbers = std::array<std::int64_t, kNames.size()>;
  const Numbers mine{state.step, state.samples, state.tokens, keep};
  std::vector<Numbers> all(static_cast<std::size_t>(world.world()));
  world.all_gather(mine.data(), all.data(), sizeof mine, {.operation = "checkpoint state"});
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    for (std::size_t k = 0; k < kNames.size(); ++k)
      if (all[rank][k] != all[0][k])
        throw UsageError(
            fmt::format("save_checkpoint: {} is {} on rank {} and {} on rank 0; give all ranks the same",
                        kNames[k], all[rank][k], rank, all[0][k]));
}

// What this rank's file holds.
std::vector<PersistentBuffer> stored_by(Engine& engine) {
  std::vector<PersistentBuffer> stored = buffers_of(engine);
  std::erase_if(stored, [&](const PersistentBuffer& buffer) {
    return storing_rank(engine.options().mesh, engine.rank(), buffer) != engine.rank();
  });
  return stored;
}

// What this rank's file will say, but for what all ranks save together.
Header header_of(Engine& engine, const RunState& state, const std::vector<PersistentBuffer>& stored) {
  Header header = describe(engine);
  header.state = state;
  header.counters = engine.counters();
  BufferReader reader(engine);
  for (const PersistentBuffer& buffer : stored) {
    Checksum checksum;
    reader.each_piece(buffer, [&](std::span<const std::byte> piece) { checksum.add(piece); });
    const Layout& layout = engine.layout();
    header.buffers.push_back(
        {.unit = layout.units().at(static_cast<std::size_t>(layout.flat(buffer.flat).unit)).name,
         .flat = buffer.flat,
         .state = buffer.state,
         .whole = buffer.whole,
         .bytes = buffer.bytes,
         .checksum = checksum.value()});
  }
  return header;
}

// Sets the ranks that write a file, those with something to store and rank 0, which has the run's state; and
// the hash of what all of them store.
void agree_on_contents(Communicator& world, Header& header) {
  struct Part {
    std::uint64_t writes = 0, checksum = 0;
  } mine;
  std::vector<std::uint64_t> checksums;
  for (const StoredBuffer& buffer : header.buffers) checksums.push_back(buffer.checksum);
  mine.writes = !checksums.empty() || header.rank == 0 ? 1 : 0;
  mine.checksum = checksum_of(std::as_bytes(std::span(checksums)));
  std::vector<Part> parts(static_cast<std::size_t>(world.world()));
  world.all_gather(&mine, parts.data(), sizeof mine, {.operation = "checkpoint contents"});
  checksums.clear();
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    if (parts[rank].writes == 1) header.ranks.push_back(static_cast<int>(rank));
    checksums.push_back(parts[rank].checksum);
  }
  header.contents = checksum_of(std::as_bytes(std::span(checksums)));
}

// This rank's file; none where it has nothing to store.
void write_file(const fs::path& folder, Engine& engine, Header& header,
                const std::vector<PersistentBuffer>& stored) {
  if (std::ranges::find(header.ranks, header.rank) == header.ranks.end()) return;
  if (std::error_code error; !fs::is_directory(folder, error))
    throw EnvironmentError(
        fmt::format("rank {} does not find '{}', which is made by rank 0; all ranks must see the same folder",
                    header.rank, folder.string()));
  BufferReader reader(engine);
  const std::vector<std::byte> head = encode(header);
  FileWriter file(folder / file_name(header.rank), header.file_bytes);
  file.write(head);
  for (std::size_t i = 0; i < stored.size(); ++i) {
    file.pad_to(header.buffers[i].offset);
    reader.each_piece(stored[i], [&](std::span<const std::byte> piece) { file.write(piece); });
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
  if (keep < 1)
    throw UsageError(
        fmt::format("save_checkpoint: keep is {}; at least the checkpoint itself stays: 1", keep));
  if (state.step < 0)
    throw UsageError(fmt::format("save_checkpoint: step is {}; it must be 0 or more", state.step));
  check_arguments("save_checkpoint", world, engine);
  check_alike(world, state, keep);
  const std::string name = step_name(state.step);
  const fs::path temporary = folder / (name + ".tmp");
  fs::path final = folder / name;
  const bool first = engine.rank() == 0;

  std::optional<FolderLock> lock;
  Cleanup cleanup;
  together(world, "checkpoint folder", [&] {
    if (!first) return;
    if (is_checkpoint(folder))
      throw UsageError(
          fmt::format("save_checkpoint: '{}' is one checkpoint; give the folder around it, where the next "
                      "one has its place",
                      folder.string()));
    lock.emplace(folder);
    remove_temporaries(folder);
    cleanup.path = temporary;
    fs::create_directory(temporary);
  });
  const std::vector<PersistentBuffer> stored = stored_by(engine);
  Header header;
  together(world, "checkpoint checksums", [&] { header = header_of(engine, state, stored); });
  agree_on_contents(world, header);
  together(world, "checkpoint files", [&] { write_file(temporary, engine, header, stored); });
  together(world, "checkpoint rename", [&] {
    if (first) publish(folder, temporary, final, keep);
  });
  return final;
}

}  // namespace tessera
