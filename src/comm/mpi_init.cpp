// Worlds of processes: starts MPI, and lets it make the memory that the processes of a host share. The only
// file that calls MPI.
#include <fmt/format.h>
#include <mpi.h>

#include <cstdlib>
#include <mutex>
#include <thread>

#include "src/comm/mpi_backend.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;

constexpr std::int64_t kSharedBytesPerRank = std::int64_t{8} << 20;
constexpr std::int64_t kAlign = 64;

void check(int status, const char* call) {
  if (status == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(status, text, &length);
  throw EnvironmentError(fmt::format("{}: {}", call, text));
}

// The range that the processes of a host share. Giving it back is collective, so a world that ends only says
// that it may go, and the next world's making, or the end of MPI, does it.
struct Window {
  MPI_Win handle = MPI_WIN_NULL;
  std::atomic<bool> unused{false};
};

class Mpi {
 public:
  static Mpi& started() {
    static Mpi* const mpi = new Mpi;  // used by an exit handler
    return *mpi;
  }

  MPI_Comm all() const { return all_; }
  bool owned() const { return owned_; }

  // All processes must come here within the deadline.
  void meet(milliseconds deadline) {
    MPI_Request request;
    check(MPI_Ibarrier(all_, &request), "MPI_Ibarrier");
    const auto limit = device::Clock::now() + deadline;
    for (int done = 0; check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test"), done == 0;) {
      if (device::Clock::now() >= limit)
        throw CommunicationError(
            fmt::format("making a world of processes: not all of them came within {:.1f} s",
                        std::chrono::duration<double>(deadline).count()),
            -1);
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  // Collective: gives back windows that no process uses any more.
  void free_unused() {
    std::vector<int> unused;
    for (const auto& window : windows_) unused.push_back(window->unused.load() ? 1 : 0);
    check(MPI_Allreduce(MPI_IN_PLACE, unused.data(), static_cast<int>(unused.size()), MPI_INT, MPI_MIN, all_),
          "MPI_Allreduce");
    std::vector<std::shared_ptr<Window>> kept;
    for (std::size_t i = 0; i < windows_.size(); ++i) {
      if (unused[i] == 0) {
        kept.push_back(windows_[i]);
        continue;
      }
      check(MPI_Win_unlock_all(windows_[i]->handle), "MPI_Win_unlock_all");
      check(MPI_Win_free(&windows_[i]->handle), "MPI_Win_free");
    }
    windows_ = std::move(kept);
  }

  // Collective over `host`: a range of `bytes` that all its processes see.
  std::shared_ptr<Window> allocate(MPI_Comm host, std::int64_t bytes, void*& base) {
    auto window = std::make_shared<Window>();
    int rank = 0;
    check(MPI_Comm_rank(host, &rank), "MPI_Comm_rank");
    check(MPI_Win_allocate_shared(rank == 0 ? bytes : 0, 1, MPI_INFO_NULL, host, &base, &window->handle),
          "MPI_Win_allocate_shared");
    MPI_Aint found_bytes = 0;
    int unit = 0;
    check(MPI_Win_shared_query(window->handle, 0, &found_bytes, &unit, &base), "MPI_Win_shared_query");
    check(MPI_Win_lock_all(MPI_MODE_NOCHECK, window->handle), "MPI_Win_lock_all");
    windows_.push_back(window);
    return window;
  }

  std::mutex& mutex() { return mutex_; }

 private:
  Mpi() {
    int initialized = 0, finalized = 0;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    if (finalized != 0) throw UsageError("a world of processes after MPI_Finalize: make it before");
    if (initialized == 0) {
      int provided = 0;
      check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
      owned_ = true;
      std::atexit([] { Mpi::started().finish(); });
    }
    check(MPI_Comm_dup(MPI_COMM_WORLD, &all_), "MPI_Comm_dup");
    check(MPI_Comm_set_errhandler(all_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }

  // At the exit of a process that started MPI itself. It would wait for the others, so not where a world has
  // failed: the launcher then sees a process that ended without, and ends them.
  void finish() {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized == 0 && !failed_.load()) MPI_Finalize();
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

std::shared_ptr<comm::MpiWorld> make_shared_world(Mpi& mpi, MPI_Comm host, const MpiOptions& options) {
  int rank = 0, ranks = 1;
  check(MPI_Comm_rank(host, &rank), "MPI_Comm_rank");
  check(MPI_Comm_size(host, &ranks), "MPI_Comm_size");
  const std::int64_t room = options.shared_bytes > 0 ? options.shared_bytes : ranks * kSharedBytesPerRank;
  const std::int64_t bytes = comm::SharedWorld::range_bytes(ranks, room);
  void* base = nullptr;
  auto keeper = std::make_shared<Keeper>();
  keeper->window = mpi.allocate(host, bytes + kAlign, base);
  std::size_t space = static_cast<std::size_t>(bytes + kAlign);
  std::align(kAlign, static_cast<std::size_t>(bytes), base, space);
  auto* const shared = static_cast<comm::SharedWorld*>(base);
  if (rank == 0) new (shared) comm::SharedWorld(ranks, bytes);
  mpi.meet(options.deadline);
  keeper->shared = shared;
  auto world = std::make_shared<comm::MpiWorld>(
      comm::MpiWorld::Place{.shared = shared, .keeper = keeper, .rank = rank, .ranks = ranks}, options);
  mpi.meet(options.deadline);
  shared->check_visible();
  return world;
}

}  // namespace

bool mpi_available() { return true; }

Communicator make_mpi_world(const MpiOptions& options) {
  Mpi& mpi = Mpi::started();
  const std::lock_guard lock(mpi.mutex());
  mpi.meet(options.deadline);
  mpi.free_unused();
  int ranks = 1, here = 1;
  MPI_Comm host = MPI_COMM_NULL;
  check(MPI_Comm_size(mpi.all(), &ranks), "MPI_Comm_size");
  check(MPI_Comm_split_type(mpi.all(), MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host), "MPI_Comm_split_type");
  check(MPI_Comm_size(host, &here), "MPI_Comm_size");
  if (here != ranks)
    throw UnsupportedError(
        fmt::format("{} processes on more than one host: this version runs all on one", ranks));
  const auto world = make_shared_world(mpi, host, options);
  check(MPI_Comm_free(&host), "MPI_Comm_free");
  return comm::communicator_of(world);
}

}  // namespace tessera
