// Floor 5: how ranks exchange bytes. A small value over a hidden backend (local: ranks are threads of a
// process; mpi, process: ranks are processes; control: what brings these together without MPI; nccl: what
// lies on GPUs, beside one of these). Owns matching, deadlines and failure of collectives; allocates no
// tensors and knows nothing of programs.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/device_type.h"
#include "tessera/dtype.h"
#include "tessera/error.h"
#include "tessera/exact_sum.h"
#include "tessera/reduction.h"
#include "tessera/waiting.h"

namespace tessera {

// Defined in tessera/device.h.
class Arena;
struct ArenaSource;
class FailureFlag;
class Stream;

namespace comm {
class Backend;
}

// What a call is for, in errors. The unit must be the same on all ranks; its first 63 characters are kept.
struct CallLabel {
  std::string_view unit = {};
  const char* operation = nullptr;  // a literal; the call's own name where it is null
};

// Rank r's shard becomes the sum over contributing ranks of slice r, [r*shard_numel, (r+1)*shard_numel), of
// their full buffers. An exact one is one fp32 chain in ascending order of these ranks, begun from the
// shard's values if accumulate, else from the first contribution (docs/numerics.md). A native one is a sum in
// the wire's type in an order that is not said, added to the shard in fp32 if accumulate.
struct ReduceScatter {
  const void* full =
      nullptr;  // world * shard_numel elements of type wire; null on ranks that do not contribute
  DType wire = DType::fp32;
  float* shard = nullptr;  // shard_numel; may be slice r of full itself if wire is fp32 and not accumulate
  std::int64_t shard_numel = 0;  // the same on all ranks
  bool accumulate = false;
  // These ranks contribute; the others only receive. The same on all ranks. Fewer than all only where the
  // reduction is exact.
  Contributors contributors = {};
  Reduction reduction = Reduction::exact;  // the same on all ranks; native needs reduces_natively()
  // Exact sums only: contributions are added as a balanced tree in rank order instead of as a chain. Of n,
  // the first half, which is the largest power of two below n, and the rest are each added so, and then the
  // two:
  // ((0 + 1) + (2 + 3)) of four. So ranks may have added what are consecutive contributions of more ranks,
  // for the same bits. The same on all ranks; without `accumulate`, and without squares.
  bool balanced = false;
  // Where a sum is given, in memory of the shard's device, the squares of what the shard becomes are added to
  // it (docs/numerics.md). Where ranks read each other's buffers they are taken on the way; elsewhere the
  // shard is read once more.
  Squares squares = {};
};

// Of the reduce-scatters that a communicator bound to a stream will be asked for: what memory they need.
struct MostReduced {
  std::int64_t numel = 0;         // of an exact one's shard; larger ones go in parts
  std::int64_t native_bytes = 0;  // of a native one's shard in the wire's type, unless that is fp32 and it
                                  // does not accumulate; none may be larger
};

// Whether peers read the arenas that were registered together where they lie; between GPUs, whether NCCL may
// where its transports can.
struct ArenaRegistration {
  bool direct = false;
  std::string reason = {};  // why not; empty where direct
  std::string note = {};    // what else is not as it should be; costs speed only
};

// The ranks of one group, for one lane: calls are made by one thread at a time, in the same order on all
// members. A call blocks its thread until it is complete on this rank: the result is there, and no peer can
// still read this rank's buffers. Buffers are read only by peers, never written.
//
// Errors (CommunicationError): a peer failed; a peer did not answer within the deadline; members called
// different things. They name this rank, the operation, its sequence number on this communicator, the unit,
// and the culprit. The communicator, and all others of its world, have then failed for good. Ranks in
// messages are those of the world.
class Communicator {
 public:
  Communicator() = default;  // none; only assignment and bool may be used
  explicit Communicator(std::shared_ptr<comm::Backend> backend);
  explicit operator bool() const { return backend_ != nullptr; }

  int rank() const;         // in this group
  int world() const;        // members of this group
  int global_rank() const;  // in the world this group was made from
  const std::string& name() const;

  // A communicator of some ranks of this one, in the order given, which becomes their rank order. Its
  // members, and only they, call it with the same arguments; it does not block. UsageError if this rank is
  // not among them.
  Communicator subgroup(const std::vector<int>& ranks, const std::string& name) const;
  // The same ranks, its own order of calls: one per lane.
  Communicator duplicate(const std::string& name) const;

  // full[r] = rank r's shard. In place if shard == full + rank * shard_bytes.
  void all_gather(const void* shard, void* full, std::int64_t shard_bytes, CallLabel label = {});
  void reduce_scatter(const ReduceScatter& call, CallLabel label = {});
  // In place, element by element the sum in rank order from contribution 0, the same bits on all ranks.
  void all_reduce(float* data, std::int64_t numel, CallLabel label = {});
  void all_reduce(double* data, std::int64_t numel, CallLabel label = {});
  void broadcast(void* data, std::int64_t bytes, int root, CallLabel label = {});
  // Block p of rank r's output is block r of rank p's input. The buffers must not overlap.
  void all_to_all(const void* input, void* output, std::int64_t block_bytes, CallLabel label = {});
  void barrier(CallLabel label = {});
  // Complete when the receiver has the bytes; matched in order per pair of ranks, numbered per pair.
  void send(const void* data, std::int64_t bytes, int to, CallLabel label = {});
  void recv(void* data, std::int64_t bytes, int from, CallLabel label = {});

  // Whether its calls take buffers in memory of such a device, once bound to a stream of it. Alone, a rank
  // exchanges nothing.
  bool reaches(DeviceType device) const;
  // From now on every copy of this communicator takes buffers in memory of the stream's device, and its calls
  // return when they are enqueued: they run in the stream's order, and are complete where an event recorded
  // behind them is. Takes what they need of that memory, now and for good. Collective over the members, and
  // before any other call; ranks bind communicators of the same members, however ordered, in the same order.
  // Where the stream runs on the CPU, and where a rank is alone in a world that reaches no such device,
  // nothing changes.
  //
  // All but send() and recv() still wait until the members have called them, so that errors name the same as
  // without a stream; these two are matched on the device, in order and by nothing else. What fails later,
  // there, sets the flag that was attached, which ends waits for the stream. all_reduce() of fp64 is an
  // UnsupportedError on a GPU.
  // Those that a rank has bound to its GPU are then called by one thread at a time, all of them together:
  // UsageError for a second one.
  void bind(Stream& stream, const MostReduced& most = {});
  // Whether reduce_scatter() can be native: where it is bound to a GPU, and where a rank is alone, whose sums
  // are its own either way.
  bool reduces_natively() const;

  // Whether an arena has to be shared (ArenaOptions::shared) for register_arena() to be of use: ranks are
  // processes of one host.
  bool wants_shared_arena() const;
  // What the memory of such an arena is best taken from; none: the device's own allocator.
  ArenaSource arena_source() const;
  // Collective: each rank registers an arena of its own. From then on, until the arena is destroyed, a
  // collective on this or any other communicator of these ranks pulls straight from the peers' buffers where
  // all of them lie in the arenas registered here; other buffers take a copy more. Results do not change.
  // Between GPUs it is of the communicators that are bound by now, all of whose calls are then given buffers
  // in these arenas only.
  ArenaRegistration register_arena(Arena& arena);

  // Tells every peer, on every communicator of this world, that this rank failed; their calls end, naming it.
  void fail(const std::string& message);
  // The same whenever `flag` is set; once per rank is enough, for all its communicators.
  void attach(FailureFlag flag);

  // Tells peers whether this rank's own thread waits for them, through a lane say: where a rank that waits
  // itself does not answer, another that does not go on is named. Never set: nothing is known.
  void set_waiting(bool waiting);

  // How long a call waits for its peers; inherited by communicators made from this one later. Time in which
  // the whole process is suspended counts little, as its ranks that are threads do not run then, either.
  void set_deadline(std::chrono::milliseconds deadline);
  std::chrono::milliseconds deadline() const;
  void set_delay(std::chrono::microseconds delay);  // for tests: sleeps in every call; inherited likewise
  // Received from peers by this rank through this communicator.
  std::int64_t bytes_received() const;

  // For backends that are made over another.
  const std::shared_ptr<comm::Backend>& backend() const { return backend_; }

 private:
  std::shared_ptr<comm::Backend> backend_;
};

// The text that `root` gives, on all. Collective.
std::string broadcast_text(Communicator& world, std::string text, int root, CallLabel label = {});

// Deadlines, here and everywhere: above 0 (UsageError); beyond a year they are a year.
struct LocalOptions {
  std::chrono::milliseconds deadline{60'000};
  std::chrono::microseconds delay{0};
  Waiting waiting = Waiting::automatic;  // automatic: by ranks against cores
  // run_local only: keeps each rank's thread, and those it starts, on its share of the caller's cores, where
  // there is one for each rank at least.
  bool pin = false;
};

// Communicators of ranks 0 .. world-1 of a new world of threads; each is to be used by its rank's thread. A
// rank that lets go of its last communicator of the world has ended: who still waits for it fails.
std::vector<Communicator> make_local_world(int world, const LocalOptions& options = {});

// Runs rank_main(communicator) for every rank, rank 0 on the calling thread and a thread for each other, and
// returns when all have ended. Where ranks threw, the others are told (fail), and the cause is rethrown: the
// exception of the rank that failed first, not one of its consequences; where that rank threw none, the first
// that another threw; where none threw although one had failed (fail(), or an engine whose error was caught),
// a CommunicationError with the first failure's message. `messages`, if given, gets every rank's (empty:
// ended well). A rank still running `deadline` after the first failure, or half a second after it if the
// failure is that it did not answer for as long, is left behind, its thread detached, and the cause thrown:
// the process should then end, for that thread still uses what rank_main refers to.
// Not rank 0: its thread is the caller's, and is waited for.
void run_local(int world, const LocalOptions& options, const std::function<void(Communicator)>& rank_main,
               std::vector<std::string>* messages = nullptr);

struct MpiOptions {
  std::chrono::milliseconds deadline{60'000};
  std::chrono::milliseconds start_deadline{60'000};  // of MPI's own start; `deadline` where that is longer
  std::chrono::microseconds delay{0};
  Waiting waiting = Waiting::automatic;  // automatic: by ranks against cores
  std::int64_t shared_bytes = 0;         // of a host, through which its ranks exchange; 0: 8 MiB a rank
  bool direct = true;      // false, for tests: as if the system let no process map another's arena
  int ranks_per_host = 0;  // for tests: as if every so many ranks were on a host; 0: as it is
};

// This process's communicator of a new world whose ranks are the processes that a launcher (mpirun, srun)
// started: those of one host exchange through shared memory (see also register_arena), others by MPI's
// messages. All of them call it, any number of times; it starts MPI unless the caller did, and then ends it
// at exit. A rank that throws should tell the others by fail() and end with a non-zero status. One that lets
// go of its last communicator of the world has ended: who still waits for it fails. UnsupportedError in a
// build without MPI; CommunicationError if not all processes call it in time; EnvironmentError where the host
// has no memory to share. MPI's own calls cannot be called off: a process ends, saying so, that waits in them
// longer than `start_deadline` for MPI to start, or `deadline` for what all had begun.
Communicator make_mpi_world(const MpiOptions& options = {});
bool mpi_available();    // in this build
bool launched_by_mpi();  // whether a launcher started this process, in any build

struct ControlOptions {
  int rank = 0, world = 1;
  std::string address = "127.0.0.1";  // of rank 0's host
  int port = 29500;                   // that rank 0 listens on
  std::string launch = {};  // what all ranks were started with, and other runs not; empty: not known
  std::chrono::milliseconds deadline{60'000};
  std::chrono::microseconds delay{0};
};

// This process's communicator of a new world of processes that a launcher started without MPI: each has a
// control connection to rank 0, over which everything goes. Meant for what is small, and as the host's part
// of a world of GPUs; memory of the host that a model lies in would pass through rank 0. Ranks must run one
// build on like machines, in a network that is trusted. All call it. A rank that throws should tell the
// others by fail(). The last communicator of rank 0 waits until the others have ended, at most the deadline,
// unless the world failed. UnsupportedError in a build without asio; EnvironmentError where rank 0 cannot
// listen; CommunicationError where it cannot be reached in time, where something else answers, and on a
// process that rank 0 refuses: its build, `launch` or world is another, or its rank is there already.
Communicator make_control_world(const ControlOptions& options);
bool control_available();  // in this build
// Whether a launcher such as torchrun started this process as one of several: RANK and WORLD_SIZE are set,
// and the latter not to 1.
bool launched_by_variables();
// UsageError where a launcher of MPI says so, too, and another number of ranks: one started the other, and
// which of them started this process as a rank cannot be told.
void check_launchers();
// From RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; the port after it where torchrun itself listens there
// (TORCHELASTIC_USE_AGENT_STORE); `launch` is TESSERA_LAUNCH, or torchrun's or Slurm's id, if any.
// UsageError naming the variable that is missing or wrong.
ControlOptions control_options_from_environment();

struct ProcessOptions {
  std::string address = "127.0.0.1";  // of rank 0's host, as in ControlOptions; the way to it is used
  std::chrono::microseconds delay{0};
  Waiting waiting = Waiting::automatic;  // automatic: by ranks against cores
  std::int64_t shared_bytes = 0;         // of a host, through which its ranks exchange; 0: 8 MiB a rank
  bool direct = true;      // false, for tests: as if the system let no process map another's arena
  int ranks_per_host = 0;  // for tests: as if every so many ranks were on a host; 0: as it is
};

// This process's communicator of a new world of the ranks of `host`, a world of make_control_world(),
// whatever launcher started them: those of one host exchange through shared memory (see also register_arena),
// others by UCX. `host` brings them together, tells of failures, and has their deadline; the new world keeps
// it. All call it, any number of times. A rank that throws should tell the others by fail(). One that lets go
// of its last communicator of both worlds has ended: who still waits for it fails. EnvironmentError, the same
// on all ranks and naming one, where a host has no memory to share, a process may not see its neighbours'
// (they have one user and one PID namespace), or UCX cannot be loaded or finds no way; UnsupportedError where
// there are several hosts and the build has no UCX; UsageError where `host` is not a whole world.
Communicator make_process_world(const Communicator& host, const ProcessOptions& options = {});
bool process_between_hosts();  // whether this build has UCX

struct NcclOptions {
  // Of set-up, and of what runs on the GPU once its inputs are there; set_deadline() changes it.
  std::chrono::milliseconds deadline{60'000};
  // The most memory of the GPU that a bound communicator takes to bring together what it reduces exactly.
  std::int64_t staging_bytes = 32 << 20;
};

// This rank's communicator of a world whose ranks are GPUs: one each, as threads of a process or as
// processes, which `host` (of make_local_world, make_mpi_world or make_control_world) connects. It and those
// made from it exchange memory of the host as `host` does, until they are bound to a CUDA stream: then memory
// of that stream's GPU, by NCCL. NCCL takes no two ranks on one GPU, unless they are processes with an
// NCCL_HOSTID each. UnsupportedError in a build without NCCL; EnvironmentError where libnccl cannot be
// loaded, is older than 2.26.2, or NCCL_LAUNCH_ORDER_IMPLICIT is 0.
//
// One that is bound goes without its peers, when its last copy does: it waits, at most the deadline, for what
// this rank has in flight on it, and NCCL's memory is given back when none of the rank's is in use. A peer
// may then still be reading what this rank sent: where ranks go on, or end well, all first wait for their
// streams and then meet, by a barrier() of one that is not bound, say.
Communicator make_nccl_world(const Communicator& host, const NcclOptions& options = {});

// NCCL as this machine has it; loads it.
struct NcclLibrary {
  std::string version = {};   // empty where there is none
  std::string unusable = {};  // why; empty where there is one
};
NcclLibrary read_nccl_library();

// This rank's place, by rank, among those of `world` on the same host, and how many they are. Collective.
struct HostPlace {
  int rank = 0, ranks = 1;
  std::vector<int> members = {0};  // the ranks of `world`, ascending
};
HostPlace place_on_host(Communicator& world);

}  // namespace tessera
