// Floor 3: where a program runs. Owns the arena's bytes, the ordered queues that lanes run on, and a rank's
// failure flag. Knows nothing of programs' instructions or of peers, and asks nothing of the machine, as
// tessera/machine.h does.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/category.h"
#include "tessera/device_type.h"

namespace tessera {

// Set once, by whatever fails first on a rank; shared by that rank's streams and communicators, whose waits
// then end within milliseconds. Copies share one state. Every member may be called from any thread.
class FailureFlag {
 public:
  FailureFlag();

  // Returns false where the flag was set before; the first cause stays. Runs the hooks on the calling thread.
  bool set(std::exception_ptr cause);
  bool set(const std::string& message);

  bool failed() const noexcept;
  std::string message() const;  // of the cause; empty while not failed
  // Throws the cause; does nothing while not failed.
  void rethrow() const;
  // `hook` gets the message when the flag is set (at once where it is set already). It must not throw or
  // block.
  void on_failure(std::function<void(const std::string& message)> hook);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// How threads wait for each other: a short spin, some sched_yield, then a futex. `automatic` chooses by the
// threads that are busy at the same time against the cores: spin where all of them have a core, block where
// far from it. Beside others that take the cores, threads sleep at once, whatever was chosen.
enum class Waiting : std::uint8_t { automatic, spin, yield, block };

class Stream;

// A point in a stream's order, a plain value: everything submitted before it. A default event is done.
// Valid while its stream lives.
struct Event {
  Stream* stream = nullptr;
  std::uint64_t ticket = 0;
};

// One operation of a stream; `context` must live until it has run. What it throws fails the stream.
struct Task {
  void (*run)(void* context, std::uint64_t argument) = nullptr;
  void* context = nullptr;
  std::uint64_t argument = 0;
};

struct StreamOptions {
  std::string name = "stream";  // in errors, and the thread's name (its first 15 characters)
  bool on_caller = false;       // true: run() runs the task at once on the calling thread (the compute lane)
  int capacity = 1024;          // operations in flight before run() and wait() block; at least 1
  std::vector<int> cpus = {};   // cores the stream's thread may use; empty: any. Not with on_caller
  bool urgent = false;          // on a GPU its kernels are scheduled before those of other streams
};

// An ordered queue of operations. One thread at a time submits (run, wait, record); any thread may
// synchronize or ask. Nothing is allocated per operation.
//
// On a GPU, run() runs the task at once on the calling thread, with the GPU current there, and the task
// enqueues its work on native(), without waiting for it; events are points in that order. `capacity` then
// counts events: a record() beyond it blocks until the oldest is done. For an event of a thread of the host
// (make_host_stream) the GPU waits, too; for one of another CPU's stream the caller does.
//
// Failure: a task that throws fails the stream and sets the device's failure flag; later operations are
// skipped, and every wait for an event at or after the failure throws what the flag holds: the rank's first
// cause, with its type. A stream on the caller throws from run() and wait() directly. A wait also ends, by
// throwing, when the flag is set elsewhere or the device's deadline passes (EnvironmentError naming the
// stream). A kernel that fails is noticed by whoever next waits for, asks for or records an event behind it.
class Stream {
 public:
  virtual ~Stream() = default;  // skips what has not begun, ends its thread; never communicates
  Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  virtual const std::string& name() const = 0;
  virtual void run(Task task) = 0;
  // Later operations of this stream begin after `event`. Does not block the caller unless on_caller.
  virtual void wait(Event event) = 0;
  virtual Event record() = 0;
  // Blocks the calling thread until `event`, of this stream, is done; throws the flag's cause if it failed.
  virtual void synchronize(Event event) = 0;
  // Whether `event`, of this stream, has completed or failed; never blocks or throws.
  virtual bool done(Event event) const noexcept = 0;
  // The cudaStream_t behind it; null on the CPU.
  virtual void* native() const noexcept { return nullptr; }

  // Everything submitted so far.
  void synchronize() { synchronize(record()); }
};

// Times at which a device's streams reach points of their order, by the device's own clock: a GPU's between
// two of its kernels, the CPU's when the task is run that marks. Slots are made up front: nothing is
// allocated per mark. A step is timed by these; Event is what streams wait for.
class Marks {
 public:
  virtual ~Marks() = default;
  Marks() = default;
  Marks(const Marks&) = delete;
  Marks& operator=(const Marks&) = delete;

  // Time 0 is when it returns: by then `stream`, of the device, has done all that it was given. On a GPU the
  // times of host and device agree to half of what it takes to hear from an idle stream, microseconds; it is
  // asked again, some times, where the answer was late.
  virtual void begin(Stream& stream) = 0;
  // `slot` gets the time at which `stream`, of the device or its host, has done all that came before. Called
  // where the stream's tasks are run, or submitted if it is on the caller; several threads may, of other
  // slots.
  virtual void mark(std::size_t slot, Stream& stream) = 0;
  // µs since begin(); the slot was marked since, and its stream has been waited for.
  virtual double us(std::size_t slot) const = 0;
};

struct ArenaOptions {
  std::int64_t bytes = 0;
  std::int64_t stagger_bytes = 0;  // the base lies this far after a 2 MiB boundary; a multiple of 256
  bool huge_pages = true;          // asks for transparent huge pages; silently without where refused
  bool fill_poisoned = false;      // poison() also fills with 0xFF, a NaN of every type
  // Memory that other processes of this host can map, every page of it taken at once; private where the
  // system has none (Arena::file() tells).
  bool shared = false;
};

// What other processes map to see an arena that is shared.
struct ArenaFile {
  int descriptor = -1;  // -1: the arena is private
  std::int64_t base_offset = 0;
  std::int64_t bytes = 0;  // up to the arena's end
};

// Memory that a device hands to an arena, other than the CPU's. Zero when taken, given back when destroyed.
class ArenaMemory {
 public:
  virtual ~ArenaMemory() = default;
  ArenaMemory() = default;
  ArenaMemory(const ArenaMemory&) = delete;
  ArenaMemory& operator=(const ArenaMemory&) = delete;

  virtual std::byte* base() const = 0;
  // Sets each byte to `value`, after all that was submitted to the device's streams and before all that will
  // be.
  virtual void fill(std::int64_t offset, std::int64_t bytes, int value) = 0;
};

// Where the memory of an arena comes from, if not from the device's own allocator. Both are called with the
// device current on the calling thread and nothing of the arena in use.
struct ArenaSource {
  std::function<void*(std::int64_t bytes)> take = {};  // null where refused: the device's own is asked then
  std::function<void(void* memory)> give_back = {};    // throws nothing

  explicit operator bool() const { return take != nullptr; }
};

// One range of bytes, taken once and given back when destroyed. Zero when taken. Moves, does not copy.
class Arena {
 public:
  Arena() = default;
  // EnvironmentError naming the bytes where the system refuses them.
  explicit Arena(const ArenaOptions& options);
  // Of `bytes` that lie elsewhere than in this process's own pages.
  Arena(std::unique_ptr<ArenaMemory> memory, std::int64_t bytes, bool fill_poisoned);
  ~Arena();
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;

  std::byte* base() const { return base_; }
  std::int64_t bytes() const { return bytes_; }

  // Under AddressSanitizer, makes a range of offsets an error to touch, or legal again. Ranges are multiples
  // of 8, but where the arena ends. What lies elsewhere is filled only, where that is asked for.
  void poison(std::int64_t offset, std::int64_t bytes);
  void unpoison(std::int64_t offset, std::int64_t bytes);

  const ArenaFile& file() const { return file_; }
  // Keeps `user` until just before the memory is given back.
  void attach(std::shared_ptr<void> user) { users_.push_back(std::move(user)); }

 private:
  void check(const char* what, std::int64_t offset, std::int64_t bytes) const;
  void share(std::int64_t offset);
  void take_all(bool huge_pages);
  [[noreturn]] void refuse(int code);
  void give_back() noexcept;

  std::byte* base_ = nullptr;
  std::int64_t bytes_ = 0;
  void* mapping_ = nullptr;
  std::size_t mapping_bytes_ = 0;
  std::unique_ptr<ArenaMemory> memory_;  // in place of the mapping
  bool fill_poisoned_ = false;
  ArenaFile file_;
  std::vector<std::shared_ptr<void>> users_;
};

// Bytes in use by category, and their peaks. Thread-safe.
class ByteCounters {
 public:
  void add(Category category, std::int64_t bytes);  // negative: given back
  std::int64_t current(Category category) const;
  std::int64_t peak(Category category) const;
  std::int64_t current_total() const { return total_.load(); }
  std::int64_t peak_total() const { return peak_total_.load(); }

 private:
  std::array<std::atomic<std::int64_t>, kCategories> current_{}, peak_{};
  std::atomic<std::int64_t> total_{0}, peak_total_{0};
};

struct CpuDeviceOptions {
  int rank = 0;                          // staggers the arena, appears in errors
  Waiting waiting = Waiting::automatic;  // of this device's streams
  int busy_threads = 0;  // busy at once in this process, for `automatic`; 0: not known, block soon
  std::chrono::milliseconds deadline{600'000};  // of a wait between streams, and of ending a stream
  bool fill_poisoned = false;                   // see ArenaOptions
};

// One rank's device.
class Device {
 public:
  virtual ~Device() = default;
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  virtual DeviceType type() const = 0;
  virtual std::string name() const = 0;
  // Memory of the device. `shared` as in ArenaOptions; a GPU's is always private. `source` is asked first, by
  // a GPU only.
  virtual Arena make_arena(std::int64_t bytes, bool shared = false, const ArenaSource& source = {}) = 0;
  // Memory of the host of exactly these bytes, that the device copies from and to without staging (pinned).
  // Its base is a multiple of 4096.
  virtual Arena make_host_arena(std::int64_t bytes) = 0;
  virtual std::unique_ptr<Stream> make_stream(const StreamOptions& options) = 0;
  // A stream of the CPU, whatever the device: its tasks work on the host and may block. What a GPU copies
  // behind an event of it lies in an arena of the host: other memory may be read when the copy is given.
  virtual std::unique_ptr<Stream> make_host_stream(const StreamOptions& options) = 0;
  // For points of streams of either kind, at most `slots` between two begins.
  virtual std::unique_ptr<Marks> make_marks(std::size_t slots) = 0;
  virtual FailureFlag failure() const = 0;
  virtual ByteCounters& counters() = 0;

  // Copies bytes between the host and the device, or within either; sets each byte to `value`. In the order
  // of `stream`, if called from one of its tasks. The CPU is done with it on return. A GPU only has it
  // enqueued: memory of the host must stay as it is until an event recorded behind it is done; where it is
  // not pinned the call may block.
  virtual void copy(Stream& stream, void* to, const void* from, std::int64_t bytes) = 0;
  virtual void fill(Stream& stream, void* to, int value, std::int64_t bytes) = 0;
};

std::unique_ptr<Device> make_cpu_device(const CpuDeviceOptions& options);

struct CudaDeviceOptions {
  int rank = 0;                                 // appears in errors
  int ordinal = 0;                              // which of the GPUs that the driver shows this process
  std::chrono::milliseconds deadline{600'000};  // of a wait for an event, and of ending a stream
  // See ArenaOptions; its fills order the streams among each other. Memory of the host is not filled.
  bool fill_poisoned = false;
};

// One GPU, which becomes and stays the current one of every thread that works with it. UnsupportedError in a
// build without CUDA; EnvironmentError, with the reason, where the machine has no driver or no such GPU.
std::unique_ptr<Device> make_cuda_device(const CudaDeviceOptions& options);

struct DeviceOptions {
  int rank = 0;
  int ordinal = 0;                       // of a GPU
  Waiting waiting = Waiting::automatic;  // these two of the CPU's streams
  int busy_threads = 0;
  std::chrono::milliseconds deadline{600'000};
  bool fill_poisoned = false;
};
// Either of the two above.
std::unique_ptr<Device> make_device(DeviceType type, const DeviceOptions& options);

}  // namespace tessera
