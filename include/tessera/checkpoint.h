// Floor 6: saves a run so that it resumes bit for bit, on any mesh and with any strategy. Owns the files;
// knows nothing of data or schedules.
//
//   <folder>/step-00000100/rank-00000.tessera …   one file for rank 0 and for each rank that stores a buffer
//   <folder>/latest                               names the newest step folder
//   <folder>/lock                                 locked while a run saves there, see CheckpointLock
//
// A shard is stored by the rank of the first replica that holds it, and a replica's slice by its own rank. A
// replicated buffer is stored by the first rank of the shard group only, and one that tensor ranks have
// copies of by the first of them. Every rank must see the folder.
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

// What a run must know to continue, besides the states and counters that the engine has.
struct RunState {
  std::int64_t step = 0;           // steps run so far, skipped ones included
  std::int64_t samples = 0;        // samples read by all ranks so far, which is the number of the next one
  std::string configuration = {};  // the run's configuration as text; stored, not interpreted
  std::string data = {};           // describes what was trained on; stored likewise. Empty if an earlier
                                   // build saved it
  // to_text() of what decides the run's bits (tessera/numerics.h). If it is empty, Engine::numerics() is
  // stored. Empty if an earlier build saved it.
  std::string numerics = {};
  std::int64_t tokens = 0;  // tokens, or other elements, trained on so far; stored for reports. 0 if an
                            // earlier build saved it
};

// Writes the states of all ranks under a temporary name, syncs them to the disk and renames them. So a
// checkpoint is there completely or not at all. Returns the checkpoint's own folder.
//
// Then removes all but the newest `keep` checkpoints (at least 1). A checkpoint counts as one of the oldest
// if its step is later than this one's, or later than that of the checkpoint which `latest` named until then:
// the run went back to an earlier step. So give a run that starts from the beginning a folder of its own. A
// checkpoint that cannot be removed stays, see PendingCheckpoint::note().
//
// Collective, between steps; every rank gives the same `state`. `world` is any communicator of the engine's
// ranks. Its deadline bounds how much longer one rank's writing may take than another's.
//
// Throws EnvironmentError, the same on all ranks, if a file cannot be written. It names the file, the bytes
// and the system's reason; the temporary files are removed, and earlier checkpoints are untouched. Also if
// another process saves into the folder (see CheckpointLock), or a rank does not find what rank 0 made there.
// Throws UsageError for a `world` with another number of ranks than the engine, for numbers that differ
// between ranks (texts may differ: rank 0's are kept), for a `keep` or a step out of range, for a folder that
// is itself one checkpoint, and for a folder with a checkpoint of other units or another optimizer.
std::filesystem::path save_checkpoint(const std::filesystem::path& folder, Communicator world, Engine& engine,
                                      const RunState& state, int keep = 2);

// A checkpoint that is written while training goes on, from begin_checkpoint() until finish().
class PendingCheckpoint {
 public:
  PendingCheckpoint();  // none
  explicit PendingCheckpoint(std::shared_ptr<checkpoint::Save> save);
  PendingCheckpoint(PendingCheckpoint&&) noexcept;
  PendingCheckpoint& operator=(PendingCheckpoint&&) noexcept;
  // Without finish(), on all ranks alike: stops the writing and removes what was written. Waits for no peer.
  ~PendingCheckpoint();

  explicit operator bool() const { return save_ != nullptr; }
  // Whether this rank's part is on the disk or has failed. Once that is so on all ranks, finish() only has to
  // rename the checkpoint and remove old ones. Always false before the next change of parameters or states,
  // where the ranks meet.
  bool written() const;
  // Does the rest of save_checkpoint(), and returns and throws as that does. Collective; allowed between any
  // two calls of the engine. The checkpoint is complete when it returns, and not before. Afterwards this
  // object holds no checkpoint, also if finish() throws.
  std::filesystem::path finish();
  // On rank 0 of `world`, after finish(): why an older checkpoint that should be removed is still there. Show
  // it to the user; the next save tries again. Otherwise empty.
  const std::string& note() const { return note_; }

 private:
  std::shared_ptr<checkpoint::Save> save_;
  std::string note_;
};

// save_checkpoint() in two parts. Returns while a thread of its own still reads and writes the states, as
// they are now. No copy is made: the next call that would change the states (in a training step, the updates)
// waits until all ranks have read theirs, see Engine::add_reader(). States that lie on the disk are read and
// written before this returns.
//
// Until finish(), both that change and finish() call `world`. As with any communicator, one thread at a time
// may call it, in the same order on all ranks. Its deadline bounds how much longer one rank may read and
// write than another. A step that exceeds it fails the engine, so give `world` a longer deadline than a step
// needs. UsageError if this process has begun another save in the folder and not finished it.
PendingCheckpoint begin_checkpoint(const std::filesystem::path& folder, Communicator world, Engine& engine,
                                   const RunState& state, int keep = 2);

// Reads what save_checkpoint() wrote. The engine must have the same units and optimizer, including the type
// of its moments. Mesh, strategy, cuts over tensor ranks and number of ranks may differ: every rank reads
// what it holds from the files that have it, and checks the checksums of all that it reads. What several
// tensor ranks saved it reads in blocks of a MiB, what one saved in whole buffers. Collective, between steps.
// `path` is a checkpoint's own folder, or the folder of all checkpoints, from which the newest is taken.
// Throws UsageError naming what differs, and EnvironmentError for a file that is missing, truncated or
// damaged, the same on all ranks. After a checksum that does not match, the engine can only continue by
// initialize() or by loading another checkpoint.
RunState load_checkpoint(const std::filesystem::path& path, Communicator world, Engine& engine);

// Sets the parameters alone from a checkpoint, as import_safetensors() sets them from a file: for inference,
// or for a run of its own. The optimizer, the parameters' types and which of them are frozen may differ from
// the run that saved it; names, shapes and ties may not. Where the checkpoint has fp32 masters these are
// read, and parameters get them rounded to their type. Moments are set to 0 and counters start again, as by
// Engine::initialize. Collective, between steps. `path` and errors are as for load_checkpoint(); if values
// cannot be read the engine has failed, and the other ranks throw CommunicationError.
RunState load_weights(const std::filesystem::path& path, Communicator world, Engine& engine);

// The newest checkpoint in a folder: what `latest` names or, without such a file, the one of the highest
// step. If the folder is itself a checkpoint, that is the answer. Nothing if there is none. Throws
// EnvironmentError with path and reason if the folder cannot be read, or if `latest` names a folder that is
// gone or lacks rank 0's file. It never falls back to an older step; name that one to load it.
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& folder);

// The newest readable checkpoint beside the one in `path` that is of an earlier step; nothing if there is
// none. `path` is a checkpoint's own folder.
std::optional<std::filesystem::path> checkpoint_before(const std::filesystem::path& path);

// latest_checkpoint() for all ranks, as rank 0 finds it: whether and from where to continue is one decision.
// Collective. EnvironmentError on all ranks if a rank does not see what rank 0 found. `world` may be empty,
// for one process that decides for the ranks that are its threads.
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& folder,
                                                       Communicator world);

// A run's lock on the folder it saves into. It keeps other runs out: their saves would remove this run's
// checkpoints and temporary files. The lock lasts until it is destroyed or the process ends, in whatever way.
// Loading and inspecting need no lock. A save takes one while it runs. Locks of one process share one hold.
class CheckpointLock {
 public:
  CheckpointLock();  // holds nothing
  // Makes the folder if it is missing. Collective, with `world` as for latest_checkpoint(). Rank 0's process
  // holds the lock, an flock() of the file `lock` in the folder. EnvironmentError on all ranks if another
  // process holds it.
  explicit CheckpointLock(const std::filesystem::path& folder, Communicator world = {});
  CheckpointLock(CheckpointLock&&) noexcept;
  CheckpointLock& operator=(CheckpointLock&&) noexcept;
  ~CheckpointLock();

  // On rank 0, if the file system has no locks: why nothing is locked. Show it to the user. Otherwise empty.
  std::string note() const;

 private:
  std::unique_ptr<checkpoint::FolderLock> lock_;
};

// What the headers of a checkpoint's files say.
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
  // Problems of the files. A file that is missing, or that is of another rank, step, run or save than its
  // name and place say, keeps the checkpoint from loading. A file too many does not. If an earlier build
  // saved the checkpoint, missing files are not known.
  std::vector<std::string> problems;
};

// Reads the headers of a checkpoint; needs no ranks. `path` and errors are as for load_checkpoint(). With
// `verify` it also reads every buffer, compares its checksum, and throws EnvironmentError for any problem. A
// checkpoint that passes can be loaded by a run with the same units and optimizer.
CheckpointInfo inspect_checkpoint(const std::filesystem::path& path, bool verify = false);

}  // namespace tessera
