// Saving: every rank writes its file, rank 0 the folder around them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <optional>
#include <utility>

#include "src/checkpoint/agree.h"
#include "src/checkpoint/buffers.h"
#include "src/checkpoint/checksum.h"
#include "src/checkpoint/folder.h"
#include "src/checkpoint/header.h"
#include "src/checkpoint/lock.h"
#include "src/checkpoint/open_file.h"
#include "src/checkpoint/rank_file.h"
#include "src/checkpoint/replace.h"
#include "src/checkpoint/same_run.h"

namespace tessera {

namespace {

namespace fs = std::filesystem;
using namespace checkpoint;

// Before anything is refused that only this rank may have been given. Texts may differ, as paths do that are
// of one host; numbers may not.
void check_alike(const char* call, Communicator& world, const RunState& state, int keep) {
  constexpr std::array kNames{"step", "samples", "tokens", "keep"};
  using Numbers = std::array<std::int64_t, kNames.size()>;
  const Numbers mine{state.step, state.samples, state.tokens, keep};
  IdVector<Numbers> all(world.world());
  world.all_gather(mine.data(), all.data(), sizeof mine, {.operation = "checkpoint state"});
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    for (std::size_t k = 0; k < kNames.size(); ++k)
      if (all[rank][k] != all[0][k])
        throw UsageError(fmt::format("{}: {} is {} on rank {} and {} on rank 0; give all ranks the same",
                                     call, kNames[k], all[rank][k], rank, all[0][k]));
}

// What this rank's file holds.
std::vector<PersistentBuffer> stored_by(Engine& engine) {
  std::vector<PersistentBuffer> stored = buffers_of(engine);
  std::erase_if(stored, [&](const PersistentBuffer& buffer) {
    return storing_rank(engine.options().mesh, engine.rank(), buffer) != engine.rank();
  });
  return stored;
}

// Sets the ranks that write a file: those with something to store and rank 0, which has the run's state. By
// their numbers in the engine, which `world` may order otherwise.
void agree_on_writers(Communicator& world, Header& header, bool stores) {
  constexpr std::int32_t kNone = -1;
  const std::int32_t mine = stores || header.rank == 0 ? header.rank : kNone;
  header.ranks.resize(static_cast<std::size_t>(world.world()));
  world.all_gather(&mine, header.ranks.data(), sizeof mine, {.operation = "checkpoint writers"});
  std::erase(header.ranks, kNone);
  std::ranges::sort(header.ranks);
}

// This rank's file; none where it is not one that writes.
std::unique_ptr<RankFile> begin_file(const fs::path& folder, Engine& engine, const Header& header,
                                     const std::vector<PersistentBuffer>& stored) {
  if (std::ranges::find(header.ranks, header.rank) == header.ranks.end()) return nullptr;
  if (std::error_code error; !fs::is_directory(folder, error))
    throw EnvironmentError(
        fmt::format("rank {} does not find '{}', which is made by rank 0; all ranks must see the same folder",
                    header.rank, folder.string()));
  return std::make_unique<RankFile>(folder / file_name(header.rank), engine, header, stored);
}

// What rank 0 takes of the folder for as long as a save goes on.
struct SavingFolder {
  SavingFolder(const fs::path& folder, fs::path to, const char* call) : lock(folder) {
    if (!lock.claim())  // whose temporaries would go
      throw UsageError(fmt::format("{}: a checkpoint is being saved into '{}'; finish() that first", call,
                                   folder.string()));
    stays = remove_temporaries(folder);
    if (!fs::create_directory(to))
      throw EnvironmentError(fmt::format(
          "cannot make checkpoint folder '{}': a save that was interrupted left one, which cannot be "
          "removed",
          to.string()));
    temporary = std::move(to);
  }
  ~SavingFolder() {  // also of a save that was abandoned; after one that was not there is nothing
    std::error_code ignored;
    if (!temporary.empty()) fs::remove_all(temporary, ignored);
  }
  SavingFolder(const SavingFolder&) = delete;
  SavingFolder& operator=(const SavingFolder&) = delete;

  FolderLock lock;
  fs::path temporary;
  std::string stays;  // why, of what an earlier save left behind; empty where all went
};

// Returns why what was to be removed then, if so, could not be: the checkpoint is there all the same.
std::string publish(const fs::path& folder, const fs::path& temporary, const fs::path& final, int keep) {
  sync_folder(temporary);
  const fs::path replaced = replace_folder(temporary, final);
  sync_folder(folder);
  const fs::path before = seen_latest(folder);
  replace_text(folder / kLatest, final.filename().string() + "\n");
  sync_folder(folder);
  const std::string stays = replaced.empty() ? "" : remove_temporary(replaced);
  const std::string pruned = prune(folder, keep, final, before);
  return stays.empty() ? pruned : stays;
}

// What another model's run saved would be removed by this one's saves. A file that is damaged tells nothing,
// and one of a newer build that it is not this run's. Of a run's own checkpoints one speaks for all.
void check_is_own(const char* call, const fs::path& folder, const Header& own) {
  const std::vector<fs::path> seen = seen_checkpoints_in(folder);
  for (auto path = seen.rbegin(); path != seen.rend(); ++path) {
    try {
      const OpenFile file(*path / file_name(0));
      return check_same(file.header, own, file.reader.path().string());
    } catch (const EnvironmentError&) {
      continue;
    } catch (const Error& error) {
      throw UsageError(
          fmt::format("{}: '{}' has another run's checkpoints: {}; give this run a folder of its own", call,
                      folder.string(), error.what()));
    }
  }
}

void check_call(const char* call, Communicator& world, Engine& engine, const RunState& state, int keep) {
  check_arguments(call, world, engine);
  check_alike(call, world, state, keep);
  if (keep < 1)
    throw UsageError(fmt::format("{}: keep is {}; at least the checkpoint itself stays: 1", call, keep));
  if (state.step < 0) throw UsageError(fmt::format("{}: step is {}; it must be 0 or more", call, state.step));
}

}  // namespace

// A save under way. All of it but the file's own thread runs on the thread that calls.
class checkpoint::Save : public StatesReader {
 public:
  Save(const fs::path& folder, Communicator world, std::int64_t step, int keep)
      : folder_(folder),
        final_(folder / step_name(step)),
        temporary_(folder / (step_name(step) + ".tmp")),
        world_(std::move(world)),
        keep_(keep) {}

  // Once, as a reader of the engine.
  void begin(const char* call, Engine& engine, const RunState& state);

  void before_change() override;
  void before_engine_goes() noexcept override {
    if (file_) file_->stop_reading();
  }
  bool written() const { return met_ && (failed_ || !file_ || file_->done()); }
  fs::path finish();
  const std::string& note() const { return note_; }

 private:
  // Returns when all ranks have read what they store, and agree on what it is.
  void meet();

  const fs::path folder_, final_, temporary_;
  Communicator world_;
  const int keep_;
  std::optional<SavingFolder> place_;  // rank 0's
  std::unique_ptr<RankFile> file_;     // ends before the folder goes
  bool met_ = false;
  std::exception_ptr failed_;  // what meet() failed with
  std::string note_;
};

void checkpoint::Save::begin(const char* call, Engine& engine, const RunState& state) {
  Header header = describe(engine);
  together(world_, "checkpoint folder", [&] {
    if (folder_.empty())
      throw UsageError(
          fmt::format("{}: folder is empty; name the one that the run's checkpoints go into", call));
    if (world_.rank() != 0) return;
    if (is_checkpoint(folder_))
      throw UsageError(fmt::format(
          "{}: '{}' is one checkpoint; give the folder around it, where the next one has its place", call,
          folder_.string()));
    check_is_own(call, folder_, header);
    place_.emplace(folder_, temporary_, call);
  });
  const std::vector<PersistentBuffer> stored = stored_by(engine);
  header.state = state;
  if (state.numerics.empty()) header.state.numerics = to_text(engine.numerics());
  header.counters = engine.counters();
  agree_on_writers(world_, header, !stored.empty());
  together(world_, "checkpoint files", [&] { file_ = begin_file(temporary_, engine, header, stored); });
}

void checkpoint::Save::before_change() {
  if (std::exchange(met_, true)) return;
  try {
    meet();
  } catch (const CommunicationError&) {
    failed_ = std::current_exception();
    throw;
  } catch (const Error&) {  // the same on all ranks, and no failure of the engine: finish() tells
    failed_ = std::current_exception();
  } catch (...) {
    failed_ = std::current_exception();
    throw;
  }
}

void checkpoint::Save::meet() {
  together(world_, "checkpoint files", [&] {
    if (file_) file_->wait_read();
  });
  const std::uint64_t mine = file_ ? file_->checksum() : checksum_of({});
  IdVector<std::uint64_t> all(world_.world());
  world_.all_gather(&mine, all.data(), sizeof mine, {.operation = "checkpoint contents"});
  if (file_) file_->complete(checksum_of(std::as_bytes(std::span(all))));
}

fs::path checkpoint::Save::finish() {
  before_change();
  if (failed_) std::rethrow_exception(failed_);
  together(world_, "checkpoint files", [&] {
    if (file_) file_->finish();
  });
  together(world_, "checkpoint rename", [&] {
    if (!place_) return;
    note_ = publish(folder_, temporary_, final_, keep_);
    if (note_.empty()) note_ = place_->stays;
  });
  return final_;
}

namespace {

std::shared_ptr<Save> begin_save(const char* call, const fs::path& folder, Communicator world, Engine& engine,
                                 const RunState& state, int keep) {
  check_call(call, world, engine, state, keep);
  auto save = std::make_shared<Save>(folder, world, state.step, keep);
  together(world, "checkpoint reader",
           [&] { told_as(call, "add_reader", [&] { engine.add_reader(save); }); });
  save->begin(call, engine, state);
  return save;
}

}  // namespace

PendingCheckpoint::PendingCheckpoint() = default;
PendingCheckpoint::PendingCheckpoint(std::shared_ptr<Save> save) : save_(std::move(save)) {}
PendingCheckpoint::PendingCheckpoint(PendingCheckpoint&&) noexcept = default;
PendingCheckpoint& PendingCheckpoint::operator=(PendingCheckpoint&&) noexcept = default;
PendingCheckpoint::~PendingCheckpoint() = default;

bool PendingCheckpoint::written() const { return save_ && save_->written(); }

fs::path PendingCheckpoint::finish() {
  if (!save_) throw UsageError("finish: no checkpoint is being saved");
  const std::shared_ptr<Save> save = std::exchange(save_, nullptr);
  fs::path path = save->finish();
  note_ = save->note();
  return path;
}

PendingCheckpoint begin_checkpoint(const fs::path& folder, Communicator world, Engine& engine,
                                   const RunState& state, int keep) {
  return PendingCheckpoint(begin_save("begin_checkpoint", folder, std::move(world), engine, state, keep));
}

fs::path save_checkpoint(const fs::path& folder, Communicator world, Engine& engine, const RunState& state,
                         int keep) {
  return begin_save("save_checkpoint", folder, std::move(world), engine, state, keep)->finish();
}

}  // namespace tessera
