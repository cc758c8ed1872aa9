// Floor 6: saves a run so that it resumes bitwise, on any mesh and with any strategy. Owns the files; knows
// nothing of data or schedules.
//
//   <folder>/step-00000100/rank-00000.tessera …   one file for each rank that has something to store
//   <folder>/latest                               names the newest of them
//   <folder>/lock                                 while a run saves there, see CheckpointLock
//
// A shard is stored by the rank that holds it (in the first replica), a replicated buffer by the first rank
// of the shard group only. Every rank must see the folder.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/engine.h"

namespace tessera {

namespace checkpoint {
class FolderLock;
class Save;
}  // namespace checkpoint

// What a run must know to continue, besides the engine's own states and counters.
struct RunState {
  std::int64_t step = 0;           // steps run, skipped ones included
  std::int64_t samples = 0;        // samples read by all ranks: the number of the next one
  std::string configuration = {};  // the run's, as text; kept, not interpreted
  std::string data = {};           // what was trained on, likewise; empty where an earlier build saved
  // to_text() of what decides the run's bits (tessera/numerics.h). Saved as Engine::numerics() where it is
  // empty; read as empty where an earlier build saved.
  std::string numerics = {};
  std::int64_t tokens = 0;  // or other elements, in all; kept for reports. 0 where an earlier build saved
};

// Writes the states of all ranks under a temporary name, syncs them to the disk and renames, so that a
// checkpoint is there whole or not at all; then removes all but the newest `keep`. Those of later steps than
// this one's, or than that of the one which `latest` named until then, count as the oldest: a run that went
// back to an earlier step does not come to them. So a run that begins anew has a folder of its own. One that
// cannot be removed stays, see PendingCheckpoint::note(). Collective, between steps; every rank gives the
// same `state`. `world` is any communicator of the engine's ranks; its deadline bounds how much longer one
// rank's writing may take than another's. Returns the checkpoint's own folder. EnvironmentError, the same on
// all ranks, where a file cannot be written, with the file, the bytes and the system's reason: the temporary
// files are then removed, and earlier checkpoints untouched. The same where another process saves into the
// folder, see CheckpointLock, and where a rank does not find what rank 0 made there. UsageError for a world
// that is not of as many ranks as the engine's, for numbers that are not the same on all ranks (texts may
// differ: rank 0's are kept), and for a folder with a checkpoint of other units or another optimizer than the
// engine's.
std::filesystem::path save_checkpoint(const std::filesystem::path& folder, Communicator world, Engine& engine,
                                      const RunState& state, int keep = 2);

// A checkpoint whose writing goes on beside training, from begin_checkpoint() until finish().
class PendingCheckpoint {
 public:
  PendingCheckpoint();  // none
  explicit PendingCheckpoint(std::shared_ptr<checkpoint::Save> save);
  PendingCheckpoint(PendingCheckpoint&&) noexcept;
  PendingCheckpoint& operator=(PendingCheckpoint&&) noexcept;
  // Instead of finish(), on all ranks alike: ends the writing and removes what there is of it. Waits for no
  // peer.
  ~PendingCheckpoint();

  explicit operator bool() const { return save_ != nullptr; }
  // Whether this rank's part is on the disk, or has failed: where that is so on all ranks, finish() only
  // renames it and removes what `keep` does not. Never so before the next change of parameters or states,
  // where the ranks meet.
  bool written() const;
  // What is left of save_checkpoint(), which says what it returns and throws. Collective; between any two
  // calls of the engine. The checkpoint is there when it returns, and not before. This then holds none, also
  // where it throws.
  std::filesystem::path finish();
  // On rank 0 of `world`, behind finish(): why an older checkpoint that `keep` does not keep is there still,
  // as one that may not be removed; to be shown. The next save tries again. Otherwise empty.
  const std::string& note() const { return note_; }

 private:
  std::shared_ptr<checkpoint::Save> save_;
  std::string note_;
};

// save_checkpoint() in two: returns while a thread of its own still reads the states and writes them, as they
// are now. No copy of them is made: the next call that would change them, of a training step the updates,
// waits until all ranks have read theirs, see Engine::add_reader(). What lies on the disk is read and written
// before this returns.
//
// Until finish(), `world` is called by that change and by finish(), like any communicator by one thread at a
// time and in the same order on all ranks; its deadline bounds how much longer one rank may read and write
// than another, and a step that exceeds it fails the engine: give it more than a step's. UsageError where
// this process has begun another in the folder and not finished it.
PendingCheckpoint begin_checkpoint(const std::filesystem::path& folder, Communicator world, Engine& engine,
                                   const RunState& state, int keep = 2);

// Reads what save_checkpoint() wrote into an engine of the same units and optimizer, its moments' type
// included, whatever mesh, strategy and number of ranks wrote it: every rank reads what it holds from the
// files that have it, and of these whole buffers, for their checksums. Collective, between steps. `path` is a
// checkpoint's own folder, or the folder of all (the newest is taken). UsageError naming what differs,
// EnvironmentError for a file that is missing, truncated or damaged, the same on all ranks. After a checksum
// that does not match, the engine goes on from nothing but initialize() or a checkpoint that loads.
RunState load_checkpoint(const std::filesystem::path& path, Communicator world, Engine& engine);

// The newest checkpoint in a folder: what `latest` names or, where there is no such file, the one of the
// highest step; the folder itself where it is a checkpoint's own. Nothing where there is none.
// EnvironmentError with path and reason where that cannot be told, as where the folder cannot be read; and
// where `latest` names a step's folder that is gone or lacks the file of rank 0: an older step is taken only
// when it is named, never for want of the newest.
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& folder);

// Of those beside the checkpoint in `path`, its own folder, the newest of an earlier step that can be looked
// at; nothing where there is none.
std::optional<std::filesystem::path> checkpoint_before(const std::filesystem::path& path);

// As latest_checkpoint(), but as rank 0 finds it, for all ranks: whether to continue, and what, is one
// decision. Collective; EnvironmentError on all where a rank does not see what rank 0 found. `world` may be
// empty: one process, which decides for ranks that are its threads.
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& folder,
                                                       Communicator world);

// A run's hold on the folder it saves into, which another run's saves would prune and whose temporary files
// they would remove. From construction until it is destroyed, or the process ends, however it ends. Loading
// and inspecting need none; a save takes one for as long as it goes on. Those of a process share its hold.
class CheckpointLock {
 public:
  CheckpointLock();  // holds nothing
  // Makes the folder where there is none. Collective, `world` as for latest_checkpoint(); rank 0's process
  // holds the lock, an flock() of the file `lock` there. EnvironmentError on all ranks where another process
  // holds it.
  explicit CheckpointLock(const std::filesystem::path& folder, Communicator world = {});
  CheckpointLock(CheckpointLock&&) noexcept;
  CheckpointLock& operator=(CheckpointLock&&) noexcept;
  ~CheckpointLock();

  // On rank 0: why nothing is held, on a file system without locks; to be shown. Otherwise empty.
  std::string note() const;

 private:
  std::unique_ptr<checkpoint::FolderLock> lock_;
};

// What a checkpoint says of itself.
struct CheckpointInfo {
  struct File {
    std::string name;
    int rank = 0;
    std::int64_t bytes = 0;  // of the whole file
    int buffers = 0;
  };
  std::filesystem::path path;
  RunState state;
  Engine::Counters counters;
  Mesh mesh;
  Placements placements;
  std::string layout;  // fingerprint of units, parameters and shards
  int units = 0;
  std::int64_t parameter_numel = 0;  // ties counted once
  std::vector<File> files;
  // Of the files: one that is missing, or of another rank, step, run or save than its name and place say,
  // with which the checkpoint does not load; one too many. What is missing is not known where an earlier
  // build saved.
  std::vector<std::string> problems;
};

// Needs no ranks. `path` as for load_checkpoint(); errors likewise. `verify` also reads every buffer and
// compares its checksum, and a problem is then an EnvironmentError: what passes, a run of the same kind can
// load.
CheckpointInfo inspect_checkpoint(const std::filesystem::path& path, bool verify = false);

}  // namespace tessera
