// Worlds of processes: starts MPI, learns who is on which host, and lets MPI make the memory that the
// processes of a host share.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <thread>

#include "src/comm/mpi/limit.h"
#include "src/comm/mpi/wire.h"
#include "src/comm/staged/backend.h"
#include "src/comm/staged/hosts.h"
#include "src/device/time_text.h"
#include "tessera/id_vector.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;

constexpr std::int64_t kAlign = 64;
constexpr const char* kMaking = "making a world of processes";
constexpr milliseconds kToBeHeard{100};  // before a launcher ends those who hear it

using comm::check_mpi;

// The range that the processes of a host share. Giving it back is collective, so a world that ends only says
// that it may go, and the next world's making, or the end of MPI, does it.
struct Window {
  MPI_Win handle = MPI_WIN_NULL;
  std::atomic<bool> unused{false};
  std::weak_ptr<comm::StagedWorld> world;
};

class Mpi {
 public:
  // The first call starts MPI, unless the caller did, in at most `limit`.
  static Mpi& started(milliseconds limit = {}) {
    static Mpi* const mpi = new Mpi(limit);  // used by an exit handler
    return *mpi;
  }

  MPI_Comm all() const { return all_; }
  bool owned() const { return owned_; }

  // All processes must come here within the deadline.
  void meet(milliseconds deadline) { meet(all_, deadline); }

  // Collective: gives back windows that no process uses any more.
  void free_unused() {
    std::vector<int> unused;
    for (const auto& window : windows_) unused.push_back(window->unused.load() ? 1 : 0);
    check_mpi(
        MPI_Allreduce(MPI_IN_PLACE, unused.data(), static_cast<int>(unused.size()), MPI_INT, MPI_MIN, all_),
        "MPI_Allreduce");
    std::vector<std::shared_ptr<Window>> kept;
    for (std::size_t i = 0; i < windows_.size(); ++i) {
      if (unused[i] == 0) {
        kept.push_back(windows_[i]);
        continue;
      }
      check_mpi(MPI_Win_unlock_all(windows_[i]->handle), "MPI_Win_unlock_all");
      check_mpi(MPI_Win_free(&windows_[i]->handle), "MPI_Win_free");
    }
    windows_ = std::move(kept);
  }

  // Collective over `host`: a range of `bytes` that all its processes see.
  std::shared_ptr<Window> allocate(MPI_Comm host, std::int64_t bytes, void*& base) {
    auto window = std::make_shared<Window>();
    int rank = 0;
    check_mpi(MPI_Comm_rank(host, &rank), "MPI_Comm_rank");
    try {
      check_mpi(
          MPI_Win_allocate_shared(rank == 0 ? bytes : 0, 1, MPI_INFO_NULL, host, &base, &window->handle),
          "MPI_Win_allocate_shared");
    } catch (const EnvironmentError& error) {
      throw EnvironmentError(
          fmt::format("{}: {} KiB that the processes of this host share; enlarge /dev/shm, where MPI mostly "
                      "takes them, or "
                      "set MpiOptions::shared_bytes to less",
                      error.what(), bytes >> 10));
    }
    MPI_Aint found_bytes = 0;
    int unit = 0;
    check_mpi(MPI_Win_shared_query(window->handle, 0, &found_bytes, &unit, &base), "MPI_Win_shared_query");
    check_mpi(MPI_Win_lock_all(MPI_MODE_NOCHECK, window->handle), "MPI_Win_lock_all");
    windows_.push_back(window);
    return window;
  }

  std::mutex& mutex() { return mutex_; }

 private:
  static void meet(MPI_Comm all, milliseconds deadline) {
    MPI_Request request;
    check_mpi(MPI_Ibarrier(all, &request), "MPI_Ibarrier");
    const auto limit = device::Clock::now() + deadline;
    for (int done = 0; check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test"), done == 0;) {
      if (device::Clock::now() >= limit)
        throw CommunicationError(
            fmt::format("{}: not all of them came within {}", kMaking, device::time_text(deadline)), -1);
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  explicit Mpi(milliseconds limit) {
    int initialized = 0, finalized = 0;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    if (finalized != 0) throw UsageError("a world of processes after MPI_Finalize: make it before");
    if (initialized != 0) meet(MPI_COMM_WORLD, limit);
    const comm::MpiLimit in_time(initialized == 0 ? "starting MPI" : kMaking, limit);
    if (initialized == 0) {
      int provided = 0;
      check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
      owned_ = true;
      std::atexit([] { Mpi::started().finish(); });
    }
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &all_), "MPI_Comm_dup");
    check_mpi(MPI_Comm_set_errhandler(all_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }

  // At the exit of a process that started MPI itself. It would wait for the others, so not where a world has
  // failed, or is still in use because the process exits in the middle: the others are told, and the launcher
  // sees a process that ended with a failure; a status of 0 it might take for the run's.
  void finish() {
    int finalized = 0;
    MPI_Finalized(&finalized);
    bool in_use = false;
    for (const auto& window : windows_) in_use |= !window->unused.load();
    if (finalized != 0) return;
    if (in_use) leave();
    if (!failed_.load()) MPI_Finalize();
  }

  [[noreturn]] void leave() {
    for (const auto& window : windows_)
      if (const auto world = window->world.lock())
        world->fail(world->rank(), "its process exits in the middle of a run");
    std::fflush(nullptr);
    std::this_thread::sleep_for(kToBeHeard);
    std::_Exit(EXIT_FAILURE);
  }

  bool owned_ = false;
  MPI_Comm all_ = MPI_COMM_NULL;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Window>> windows_;

 public:
  std::atomic<bool> failed_{false};
};

// Lives as long as a world: then notes what became of it.
struct Keeper {
  std::shared_ptr<Window> window;
  comm::SharedWorld* shared = nullptr;
  ~Keeper() {
    if (shared != nullptr && shared->failed()) Mpi::started().failed_.store(true);
    window->unused.store(true);
  }
};

struct Hosts : comm::RankHosts {
  MPI_Comm here = MPI_COMM_NULL;  // the ranks of this one
};

// Collective.
Hosts find_hosts(MPI_Comm all, const MpiOptions& options) {
  Hosts hosts;
  check_mpi(MPI_Comm_rank(all, &hosts.rank), "MPI_Comm_rank");
  int ranks = 0;
  check_mpi(MPI_Comm_size(all, &ranks), "MPI_Comm_size");
  if (options.ranks_per_host > 0)
    check_mpi(MPI_Comm_split(all, hosts.rank / options.ranks_per_host, hosts.rank, &hosts.here),
              "MPI_Comm_split");
  else
    check_mpi(MPI_Comm_split_type(all, MPI_COMM_TYPE_SHARED, hosts.rank, MPI_INFO_NULL, &hosts.here),
              "MPI_Comm_split_type");
  int first = hosts.rank;
  check_mpi(MPI_Bcast(&first, 1, MPI_INT, 0, hosts.here), "MPI_Bcast");
  hosts.first_rank = IdVector<int>(ranks);
  check_mpi(MPI_Allgather(&first, 1, MPI_INT, hosts.first_rank.data(), 1, MPI_INT, all), "MPI_Allgather");
  return hosts;
}

// Collective.
std::shared_ptr<comm::MpiWire> make_wire(const Hosts& hosts, MPI_Comm all) {
  if (!hosts.several()) return nullptr;
  int provided = MPI_THREAD_SINGLE;
  check_mpi(MPI_Query_thread(&provided), "MPI_Query_thread");
  if (provided < MPI_THREAD_MULTIPLE)
    throw EnvironmentError("ranks on several hosts need MPI with MPI_THREAD_MULTIPLE; start MPI with it");
  // Never given back: MPICH would then deliver what nobody received of this world to a later one.
  MPI_Comm messages = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(all, &messages), "MPI_Comm_dup");
  return std::make_shared<comm::MpiWire>(messages, hosts.others());
}

// Collective.
std::shared_ptr<comm::StagedWorld> make_world(Mpi& mpi, const MpiOptions& options) {
  std::optional<comm::MpiLimit> in_time(std::in_place, kMaking, options.deadline);
  mpi.free_unused();
  Hosts hosts = find_hosts(mpi.all(), options);
  const std::int64_t bytes = hosts.range_bytes(options.shared_bytes);
  void* base = nullptr;
  const auto window = mpi.allocate(hosts.here, bytes + kAlign, base);
  const auto wire = make_wire(hosts, mpi.all());
  check_mpi(MPI_Comm_free(&hosts.here), "MPI_Comm_free");
  in_time.reset();  // from here on this waits by itself
  auto keeper = std::make_shared<Keeper>();
  keeper->window = window;
  std::size_t space = static_cast<std::size_t>(bytes + kAlign);
  std::align(kAlign, static_cast<std::size_t>(bytes), base, space);
  auto* const shared = static_cast<comm::SharedWorld*>(base);
  if (hosts.rank == hosts.first()) new (shared) comm::SharedWorld(hosts.ranks(), bytes);
  mpi.meet(options.deadline);
  keeper->shared = shared;
  auto world = std::make_shared<comm::StagedWorld>(
      comm::StagedWorld::Place{
          .shared = shared, .wire = wire, .transport = wire, .hosts = hosts, .keeper = keeper},
      comm::StagedOptions{.deadline = options.deadline,
                          .delay = options.delay,
                          .waiting = options.waiting,
                          .direct = options.direct,
                          .settings = "MpiOptions"});
  window->world = world;
  mpi.meet(options.deadline);  // all have entered, so who dies is noticed
  return world;
}

}  // namespace

bool mpi_available() { return true; }

Communicator make_mpi_world(const MpiOptions& given) {
  launched_by_mpi();
  MpiOptions options = given;
  options.deadline = device::checked_deadline(given.deadline, "deadline");
  const milliseconds start = device::checked_deadline(given.start_deadline, "start_deadline");
  Mpi& mpi = Mpi::started(std::max(start, options.deadline));
  const std::lock_guard lock(mpi.mutex());
  try {
    mpi.meet(options.deadline);
    return comm::communicator_of(make_world(mpi, options));
  } catch (...) {
    mpi.failed_.store(true);
    throw;
  }
}

}  // namespace tessera
