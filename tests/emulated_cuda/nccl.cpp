// Every call becomes messages between pairs of ranks, sent and taken in order by the stream; each ends when
// it is taken. A GPU starts its calls in the order in which they were made, as by NCCL_LAUNCH_ORDER_IMPLICIT.
// The host waits until peers do likewise for a communicator's first collective and the first message to a
// peer. Stands in for src/comm/nccl/library.cpp, too.
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "src/comm/nccl/library.h"
#include "tests/emulated_cuda/emulator.h"
#include "tests/emulated_cuda/nccl_memory.h"
#include "tests/emulated_cuda/nccl_sum.h"
#include "tests/emulated_cuda/stream_work.h"

namespace {

using tessera::emulated_cuda::Access;
using tessera::emulated_cuda::driver_is_held;
using tessera::emulated_cuda::forget_registered;
using tessera::emulated_cuda::has_registered;
using tessera::emulated_cuda::is_foreign;
using tessera::emulated_cuda::Mark;
using tessera::emulated_cuda::note_misuse;
using tessera::emulated_cuda::StreamWork;
using tessera::emulated_cuda::Sum;

std::size_t bytes_of(std::size_t count, ncclDataType_t type) {
  return count * (type == ncclFloat32 ? 4 : type == ncclUint8 ? 1 : 2);
}

struct Message {
  std::string call;  // of the sender; the receiver's must be the same
  std::vector<char> bytes;
  std::shared_ptr<Mark> taken;
};

struct Clique;

// One split of a communicator, in which its ranks come one after the other.
struct Split {
  std::map<int, std::pair<int, int>> wanted;    // [rank] colour and key
  std::map<int, std::shared_ptr<Clique>> made;  // by colour
};

// What the ranks of one communicator share.
struct Clique {
  explicit Clique(int ranks) : gpu_of(static_cast<std::size_t>(ranks), -1) {}

  std::mutex mutex;
  std::map<int, Split> splits;  // in order, from 1
  std::vector<int> gpu_of;
  int joined = 0, left = 0;
  std::map<std::pair<int, int>, std::deque<Message>> messages;  // by sender and receiver
  std::condition_variable changed;  // of the last: one came or was taken, or a communicator ends
  // Who has begun the first message, likewise; of a collective under kAll.
  std::map<std::pair<int, int>, std::set<int>> connecting;
};

std::mutex registry_mutex;
std::map<std::string, std::weak_ptr<Clique>> registry;
std::atomic<int> alive{0};
std::atomic<int> unique_ids{0}, splits_begun{0}, sums_begun{0};
std::atomic<int> library_version{22809};
std::atomic<int> lost_rank{-1};  // whose communicators have failed on their own

}  // namespace

// What a communicator's kernels on streams share with it.
struct Kernels {
  std::atomic<bool> ended{false};
  std::string misuse;  // guarded by the clique's mutex
};
constexpr std::pair kAll{-1, -1};

struct ncclComm {
  std::shared_ptr<Clique> clique;
  int rank = 0;
  std::shared_ptr<Kernels> kernels = std::make_shared<Kernels>();
  bool asked = true;                              // since its last call
  std::set<std::pair<int, int>> first_calls;      // which its peers have to begin, too
  std::set<std::shared_ptr<StreamWork>> streams;  // of its kernels
  std::shared_ptr<Mark> mapped;                   // registered memory, by the drivers of all peers
  std::chrono::steady_clock::time_point maps_from;
  void* buffers = nullptr;          // on its GPU
  int splits = 0;                   // begun
  ncclComm_t* splitting = nullptr;  // where the one in progress writes
  ncclResult_t error = ncclSuccess;
  std::string words;

  int ranks() const { return static_cast<int>(clique->gpu_of.size()); }
  ncclResult_t fail(ncclResult_t result, const std::string& why) {
    words = why;
    return error = result;
  }
  ncclResult_t check_gpus() {
    std::set<int> gpus(clique->gpu_of.begin(), clique->gpu_of.end());
    if (gpus.size() == clique->gpu_of.size()) return ncclSuccess;
    return fail(ncclInvalidUsage, "Duplicate GPU detected");
  }
  void connect(const std::pair<int, int>& ends) {
    const std::lock_guard lock(clique->mutex);
    if (clique->connecting[ends].insert(rank).second) first_calls.insert(ends);
  }
  bool finish_split();
  // At the first call with registered memory, on some ranks later than on others; kernels begin behind it.
  void start_mapping() {
    if (mapped || !has_registered(this)) return;
    mapped = std::make_shared<Mark>();
    maps_from = std::chrono::steady_clock::now() + rank * std::chrono::milliseconds(5);
  }
  bool is_mapping() {
    if (!mapped || mapped->reached()) return false;
    if (std::chrono::steady_clock::now() < maps_from) return true;
    for (const int gpu : clique->gpu_of)
      if (driver_is_held(gpu)) return true;
    return mapped->reach(), false;
  }
  ncclResult_t progress() {
    if (error != ncclSuccess) return error;
    if (lost_rank.load() == rank) return fail(ncclRemoteError, "the network is down");
    {
      const std::lock_guard lock(clique->mutex);
      if (clique->joined < ranks()) return ncclInProgress;
      if (check_gpus() != ncclSuccess) return error;
      if (!kernels->misuse.empty()) return fail(ncclInvalidUsage, kernels->misuse);
    }
    if (splitting != nullptr && !finish_split()) return ncclInProgress;
    if (is_mapping()) return ncclInProgress;
    const std::lock_guard lock(clique->mutex);
    std::erase_if(first_calls, [&](const std::pair<int, int>& ends) {
      return static_cast<int>(clique->connecting[ends].size()) == (ends == kAll ? ranks() : 2);
    });
    if (!first_calls.empty()) return ncclInProgress;
    return asked = true, ncclSuccess;
  }
};

bool ncclComm::finish_split() {
  auto* const child = new ncclComm;
  const int gpu = clique->gpu_of[static_cast<std::size_t>(rank)];
  {
    const std::lock_guard lock(clique->mutex);
    Split& split = clique->splits[splits];
    if (static_cast<int>(split.wanted.size()) < ranks()) return delete child, false;
    const auto [color, key] = split.wanted.at(rank);
    int members = 0;
    for (const auto& [other, wanted] : split.wanted) {
      members += wanted.first == color ? 1 : 0;
      child->rank += wanted.first == color && std::pair(wanted.second, other) < std::pair(key, rank) ? 1 : 0;
    }
    std::shared_ptr<Clique>& made = split.made[color];
    if (!made) made = std::make_shared<Clique>(members);
    child->clique = made;
  }
  {
    const std::lock_guard lock(child->clique->mutex);
    child->clique->gpu_of[static_cast<std::size_t>(child->rank)] = gpu;
    child->buffers = tessera::emulated_cuda::take_on(gpu, tessera::emulated_cuda::kCommunicatorBytes);
    ++child->clique->joined;
  }
  ++alive;
  *std::exchange(splitting, nullptr) = child;
  return true;
}

namespace {

// What the calling thread has put in its open group.
struct Queued {
  ncclComm_t communicator;
  std::shared_ptr<StreamWork> stream = nullptr;
  std::string call;
  const void* send = nullptr;  // either, with
  void* receive = nullptr;
  std::size_t bytes = 0;
  int peer = 0;
  std::shared_ptr<Sum> sum = nullptr;
};
thread_local int depth = 0;
thread_local std::vector<Queued> queue;
thread_local std::vector<ncclComm_t> ending;  // aborted in it

// The part of a group that one communicator has on one stream.
struct Kernel {
  std::shared_ptr<Clique> clique;
  int rank, gpu;
  std::shared_ptr<Kernels> of;
  std::vector<Queued> calls;
  std::shared_ptr<const Mark> before;  // the start of the one ahead on the GPU, if any
  std::shared_ptr<const Mark> mapped;  // what it works on, if that is registered
  std::shared_ptr<Mark> started;

  void run() const {
    if (before) before->wait();
    if (mapped) mapped->wait();
    started->reach();
    std::vector<std::shared_ptr<Mark>> taken;
    for (const Queued& call : calls)
      if (call.send != nullptr) taken.push_back(send(call));
    for (const Queued& call : calls)
      if (call.receive != nullptr && !receive(call)) return;
    for (const auto& mark : taken) {
      std::unique_lock lock(clique->mutex);
      clique->changed.wait(lock, [&] { return of->ended.load() || mark->reached(); });
    }
  }
  std::shared_ptr<Mark> send(const Queued& call) const {
    Message message{call.call, std::vector<char>(call.bytes), std::make_shared<Mark>()};
    {
      const Access access(gpu);
      std::memcpy(message.bytes.data(), call.send, call.bytes);
    }
    const std::shared_ptr<Mark> taken = message.taken;
    const std::lock_guard lock(clique->mutex);
    clique->messages[{rank, call.peer}].push_back(std::move(message));
    clique->changed.notify_all();
    return taken;
  }
  bool receive(const Queued& call) const {
    Message message;
    {
      std::unique_lock lock(clique->mutex);
      std::deque<Message>& way = clique->messages[{call.peer, rank}];
      clique->changed.wait(lock, [&] { return of->ended.load() || !way.empty(); });
      if (of->ended.load()) return false;
      message = std::move(way.front());
      way.pop_front();
      if (message.call != call.call || message.bytes.size() != call.bytes) {
        of->misuse =
            "rank " + std::to_string(call.peer) + " called " + message.call + ", this rank " + call.call;
        return false;
      }
      message.taken->reach();
      clique->changed.notify_all();
    }
    if (call.sum) return call.sum->take(call.peer, std::move(message.bytes), rank), true;
    const Access access(gpu);
    return std::memcpy(call.receive, message.bytes.data(), call.bytes), true;
  }
};

// Of the last kernel that each GPU was given.
std::shared_ptr<Mark> behind_last_start(int gpu, const std::shared_ptr<Mark>& start) {
  static auto* const mutex = new std::mutex;
  static auto* const last = new std::map<int, std::shared_ptr<Mark>>;
  const std::lock_guard lock(*mutex);
  return std::exchange((*last)[gpu], start);
}

ncclResult_t start_queued() {
  const std::vector<Queued> calls = std::move(queue);
  queue.clear();
  std::set<ncclComm_t> communicators;
  for (const Queued& call : calls) communicators.insert(call.communicator);
  for (const ncclComm_t one : communicators)  // as NCCL demands of its callers
    if (!one->asked || one->splitting != nullptr)
      return one->fail(ncclInvalidUsage, "a call before the last was enqueued");
  // Of a communicator with registered memory all calls must be given such; NCCL does not look.
  for (const Queued& call : calls)
    for (const void* memory : {call.send, static_cast<const void*>(call.receive)})
      if (memory != nullptr && is_foreign(call.communicator, memory, call.bytes))
        return call.communicator->fail(ncclInvalidUsage, call.call + " with memory that is not registered");
  std::map<std::pair<ncclComm_t, std::shared_ptr<StreamWork>>, std::vector<Queued>> kernels;
  for (const Queued& call : calls) {
    ncclComm& of = *call.communicator;
    const bool message = call.call.starts_with("message");
    of.connect(!message               ? kAll
               : call.send != nullptr ? std::pair(of.rank, call.peer)
                                      : std::pair(call.peer, of.rank));
    kernels[{call.communicator, call.stream}].push_back(call);
  }
  for (const auto& [place, of_kernel] : kernels) {
    const auto& [communicator, stream] = place;
    const auto started = std::make_shared<Mark>();
    communicator->start_mapping();
    const Kernel kernel{
        .clique = communicator->clique,
        .rank = communicator->rank,
        .gpu = stream->ordinal(),
        .of = communicator->kernels,
        .calls = of_kernel,
        // In a graph only its edges order kernels.
        .before = stream->captured().capture ? nullptr : behind_last_start(stream->ordinal(), started),
        .mapped = communicator->mapped,
        .started = started};
    stream->give([kernel] { kernel.run(); });
    communicator->asked = false;
  }
  // Also where all has come: who does not ask has not waited.
  return communicators.empty() ? ncclSuccess : ncclInProgress;
}

void drop(ncclComm_t communicator) {
  forget_registered(communicator);
  tessera::emulated_cuda::free_at_once(communicator->buffers);
  {
    const std::lock_guard lock(communicator->clique->mutex);
    ++communicator->clique->left;
  }
  delete communicator;
  --alive;
}

ncclResult_t end_aborted() {
  const std::vector<ncclComm_t> all = std::exchange(ending, {});
  for (const ncclComm_t one : all) {
    tessera::emulated_cuda::wait_for_gpu(one->clique->gpu_of[static_cast<std::size_t>(one->rank)],
                                         "ncclCommAbort");
    drop(one);
  }
  return ncclSuccess;
}

ncclResult_t enqueue(cudaStream_t stream, std::vector<Queued> calls) {
  ncclGroupStart();
  for (Queued& call : calls) {
    call.stream = tessera::emulated_cuda::work_of(stream);
    call.communicator->streams.insert(call.stream);
    queue.push_back(std::move(call));
  }
  return ncclGroupEnd();
}

std::string text(const char* call, std::size_t bytes) {
  return std::string(call) + " of " + std::to_string(bytes) + " bytes";
}

}  // namespace

ncclResult_t ncclGetVersion(int* version) { return *version = library_version.load(), ncclSuccess; }
const char* ncclGetErrorString(ncclResult_t result) {
  constexpr const char* kNames[] = {"no error",       "unhandled cuda error", "unhandled system error",
                                    "internal error", "invalid argument",     "invalid usage",
                                    "remote error",   "in progress"};
  return kNames[result];
}
const char* ncclGetLastError(ncclComm_t communicator) {
  return communicator == nullptr ? "" : communicator->words.c_str();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  *id = {};
  const std::string name = "emulated " + std::to_string(++unique_ids);
  return name.copy(id->internal, NCCL_UNIQUE_ID_BYTES - 1), ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* communicator, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (config == nullptr || config->blocking != 0 || rank < 0 || rank >= ranks || id.internal[0] == '\0')
    return ncclInvalidArgument;
  std::shared_ptr<Clique> clique;
  {
    const std::lock_guard lock(registry_mutex);
    std::weak_ptr<Clique>& known = registry[id.internal];
    clique = known.lock();
    if (!clique) known = clique = std::make_shared<Clique>(ranks);
  }
  *communicator = new ncclComm;
  (*communicator)->clique = clique;
  (*communicator)->rank = rank;
  ++alive;
  const std::lock_guard lock(clique->mutex);
  int& gpu = clique->gpu_of[static_cast<std::size_t>(rank)];
  cudaGetDevice(&gpu);
  (*communicator)->buffers = tessera::emulated_cuda::take_on(gpu, tessera::emulated_cuda::kCommunicatorBytes);
  ++clique->joined;
  return ncclInProgress;
}

ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t* result, ncclConfig_t* config) {
  if (config == nullptr || config->blocking != 0 || color < 0) return ncclInvalidArgument;
  if (parent->splitting != nullptr || !parent->asked)
    return parent->fail(ncclInvalidUsage, "a split before the last call was enqueued");
  if (const ncclResult_t state = parent->progress(); state != ncclSuccess) return state;
  *result = nullptr;
  parent->splitting = result;
  ++splits_begun;
  const std::lock_guard lock(parent->clique->mutex);
  parent->clique->splits[++parent->splits].wanted[parent->rank] = {color, key};
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* state) {
  return *state = communicator->progress(), ncclSuccess;
}

// Where the others are of this host, as here, destroying is theirs to do, too: their connections end it.
ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
  if (!communicator->asked) return ncclInvalidUsage;
  if (forget_registered(communicator)) note_misuse("ncclCommDestroy with registered memory");
  const std::shared_ptr<Clique> clique = communicator->clique;
  drop(communicator);
  const auto limit = std::chrono::steady_clock::now() + tessera::emulated_cuda::kForGood;
  const auto is_alone = [&] {
    const std::lock_guard lock(clique->mutex);
    return clique->left < clique->joined;
  };
  while (is_alone()) {
    if (std::chrono::steady_clock::now() >= limit)
      return note_misuse("ncclCommDestroy waited for good"), ncclSuccess;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return ncclSuccess;
}
// Its own kernels end; then all that the GPU does is waited for, in a group at its end.
ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  for (const auto& stream : communicator->streams) stream->release();
  if (communicator->mapped && !communicator->mapped->reached()) communicator->mapped->reach();
  {
    const std::lock_guard lock(communicator->clique->mutex);
    communicator->kernels->ended.store(true);
    communicator->clique->changed.notify_all();
  }
  ending.push_back(communicator);
  return depth == 0 ? end_aborted() : ncclSuccess;
}

ncclResult_t ncclGroupStart() { return ++depth, ncclSuccess; }
ncclResult_t ncclGroupEnd() {
  if (depth == 0) return ncclInvalidUsage;
  if (--depth > 0) return ncclSuccess;
  end_aborted();
  return start_queued();
}

ncclResult_t ncclAllGather(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                           ncclComm_t communicator, cudaStream_t stream) {
  const std::size_t bytes = bytes_of(count, type);
  const std::string call = text("all-gather", bytes);
  char* const to = static_cast<char*>(receive);
  std::vector<Queued> calls;
  for (int peer = 0; peer < communicator->ranks(); ++peer) {
    calls.push_back({.communicator = communicator, .call = call, .send = send, .bytes = bytes, .peer = peer});
    calls.push_back({.communicator = communicator,
                     .call = call,
                     .receive = to + static_cast<std::size_t>(peer) * bytes,
                     .bytes = bytes,
                     .peer = peer});
  }
  return enqueue(stream, std::move(calls));
}

ncclResult_t ncclReduceScatter(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                               ncclRedOp_t, ncclComm_t communicator, cudaStream_t stream) {
  if (type == ncclUint8) return communicator->fail(ncclInvalidArgument, "a sum of bytes");
  ++sums_begun;
  const std::size_t bytes = bytes_of(count, type);
  const std::string call = text("reduce-scatter", bytes) + " of type " + std::to_string(type);
  const auto sum = std::make_shared<Sum>(Sum{.type = type,
                                             .count = count,
                                             .to = receive,
                                             .gpu = tessera::emulated_cuda::work_of(stream)->ordinal(),
                                             .parts = {}});
  sum->parts.resize(static_cast<std::size_t>(communicator->ranks()));
  std::vector<Queued> calls;
  for (int peer = 0; peer < communicator->ranks(); ++peer) {
    calls.push_back({.communicator = communicator,
                     .call = call,
                     .send = static_cast<const char*>(send) + static_cast<std::size_t>(peer) * bytes,
                     .bytes = bytes,
                     .peer = peer});
    calls.push_back({.communicator = communicator,
                     .call = call,
                     .receive = receive,
                     .bytes = bytes,
                     .peer = peer,
                     .sum = sum});
  }
  return enqueue(stream, std::move(calls));
}

ncclResult_t ncclBroadcast(const void* send, void* receive, std::size_t count, ncclDataType_t type, int root,
                           ncclComm_t communicator, cudaStream_t stream) {
  const std::size_t bytes = bytes_of(count, type);
  const std::string call = text("broadcast", bytes);
  std::vector<Queued> calls;
  for (int peer = 0; communicator->rank == root && peer < communicator->ranks(); ++peer)
    calls.push_back({.communicator = communicator, .call = call, .send = send, .bytes = bytes, .peer = peer});
  calls.push_back(
      {.communicator = communicator, .call = call, .receive = receive, .bytes = bytes, .peer = root});
  return enqueue(stream, std::move(calls));
}

ncclResult_t ncclSend(const void* send, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t communicator, cudaStream_t stream) {
  const std::size_t bytes = bytes_of(count, type);
  return enqueue(stream, {{.communicator = communicator,
                           .call = text("message", bytes),
                           .send = send,
                           .bytes = bytes,
                           .peer = peer}});
}

ncclResult_t ncclRecv(void* receive, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t communicator, cudaStream_t stream) {
  const std::size_t bytes = bytes_of(count, type);
  return enqueue(stream, {{.communicator = communicator,
                           .call = text("message", bytes),
                           .receive = receive,
                           .bytes = bytes,
                           .peer = peer}});
}

namespace tessera {

int emulated_cuda::nccl_communicators() { return alive.load(); }
void emulated_cuda::lose_network(int rank) { lost_rank.store(rank); }
void emulated_cuda::set_nccl_version(int version) { library_version.store(version); }

emulated_cuda::NcclSetUp emulated_cuda::nccl_set_up() {
  return {unique_ids.load(), splits_begun.load(), sums_begun.load()};
}

const comm::Nccl& comm::nccl() {
#define TESSERA_NCCL_OWN(function) .function = ::function,
  check_nccl_version(library_version.load(), "libnccl.so.2");
  static constexpr Nccl functions = {TESSERA_FOR_EACH_NCCL(TESSERA_NCCL_OWN)};
#undef TESSERA_NCCL_OWN
  return functions;
}

}  // namespace tessera
