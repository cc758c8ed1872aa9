// What a communication backend implements for tessera::Communicator, which has checked the arguments. One
// object per group, lane and rank. Where a rule of communicator.h speaks of ranks, buffers and errors, it
// binds every backend.
#pragma once

#include <optional>
#include <vector>

#include "src/comm/failure.h"
#include "tessera/communicator.h"
#include "tessera/device.h"

namespace tessera::comm {

enum class Operation : std::uint8_t {
  all_gather,
  reduce_scatter,
  native_reduce_scatter,
  all_reduce_fp32,
  all_reduce_fp64,
  broadcast,
  all_to_all,
  barrier,
  send,
  recv
};

constexpr const char* name_of(Operation operation) {
  switch (operation) {
    case Operation::all_gather:
      return "all_gather";
    case Operation::reduce_scatter:
      return "reduce_scatter";
    case Operation::native_reduce_scatter:
      return "native reduce_scatter";
    case Operation::all_reduce_fp32:
      return "all_reduce";
    case Operation::all_reduce_fp64:
      return "all_reduce (fp64)";
    case Operation::broadcast:
      return "broadcast";
    case Operation::all_to_all:
      return "all_to_all";
    case Operation::barrier:
      return "barrier";
    case Operation::send:
      return "send";
    case Operation::recv:
      return "recv";
  }
  return "?";
}

struct Call;

// The calls of a communicator that were captured with its stream, see Backend::begin_capture().
class CapturedCalls {
 public:
  virtual ~CapturedCalls() = default;
};

class Backend {
 public:
  virtual ~Backend() = default;
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  virtual int rank() const = 0;
  virtual int world() const = 0;
  virtual int global_rank() const = 0;
  virtual const std::string& name() const = 0;
  virtual std::shared_ptr<Backend> subgroup(const std::vector<int>& ranks, const std::string& name) = 0;

  virtual void all_gather(const void* shard, void* full, std::int64_t shard_bytes, CallLabel label) = 0;
  // `contributors` has a count of 1 to world() here.
  virtual void reduce_scatter(const ReduceScatter& call, CallLabel label) = 0;
  virtual void all_reduce(float* data, std::int64_t numel, CallLabel label) = 0;
  virtual void all_reduce(double* data, std::int64_t numel, CallLabel label) = 0;
  virtual void broadcast(void* data, std::int64_t bytes, int root, CallLabel label) = 0;
  virtual void all_to_all(const void* input, void* output, std::int64_t block_bytes, CallLabel label) = 0;
  virtual void barrier(CallLabel label) = 0;
  virtual void send(const void* data, std::int64_t bytes, int to, CallLabel label) = 0;
  virtual void recv(void* data, std::int64_t bytes, int from, CallLabel label) = 0;

  // All members announce the same call and go on when all have; a barrier that says what it is for.
  virtual void meet(const Call& call) = 0;
  // Throws where the world has failed, as a call would that waits; `call` is what this rank is doing and
  // opens the message. Never waits. From any thread.
  virtual void rethrow_failure(const std::string& call) = 0;
  // The failure that would be thrown, and the ranks of the world that make no further calls, as far as this
  // rank knows. Likewise.
  virtual std::optional<Failure> failure() const = 0;
  virtual std::vector<int> ended() const = 0;

  virtual bool reaches(DeviceType device) const { return device == DeviceType::cpu || world() == 1; }
  virtual void bind(Stream&, const MostReduced&) {}
  // Both members of a pair, of which the first sends to the second, once it is bound.
  virtual void connect_pair() {}
  // Once it is bound: register_arena() leaves it out, for what its calls are given lies elsewhere, too.
  virtual void keep_unregistered() {}
  virtual bool reduces_natively() const { return world() == 1; }
  // Calls from here to end_capture() are captured with the stream that it is bound to
  // (Device::begin_capture), on all members alike: they meet as ever, and nothing is exchanged yet. Just
  // before the work is launched then, each member says so by replay(): calls count, and have their deadlines,
  // as if they were made anew. Does nothing where calls are done on the host.
  virtual bool captures() const { return world() == 1; }  // whether it can
  virtual void begin_capture() {}
  virtual std::unique_ptr<CapturedCalls> end_capture() { return nullptr; }
  virtual void replay(const CapturedCalls&) {}

  virtual bool wants_shared_arena() const = 0;
  virtual ArenaSource arena_source() { return {}; }
  virtual ArenaRegistration register_arena(Arena& arena) = 0;

  // This rank found that `culprit` failed, of the world; -1 where that is not known. From any thread.
  virtual void fail(int culprit, const std::string& message) = 0;
  virtual void attach(FailureFlag flag) = 0;
  virtual void set_waiting(bool) {}  // a backend whose ranks cannot see it leaves it
  virtual void set_deadline(std::chrono::milliseconds deadline) = 0;
  virtual std::chrono::milliseconds deadline() const = 0;
  virtual void set_delay(std::chrono::microseconds delay) = 0;
  virtual std::int64_t bytes_received() const = 0;
};

}  // namespace tessera::comm
