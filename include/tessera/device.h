// Floor 3: the device that a program runs on. Owns the arena's bytes, the ordered queues that lanes run on,
// and a rank's failure flag. Knows nothing of instructions or peers. tessera/machine.h says what the machine
// has.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/category.h"
#include "tessera/device_type.h"
#include "tessera/waiting.h"

namespace tessera {

// Set once, by the first failure on a rank. The rank's streams and communicators share it; their waits end
// within milliseconds after it is set. Copies share one state. Any thread may call any member.
class FailureFlag {
 public:
  FailureFlag();

  // Returns false if the flag was already set; the first cause stays. Runs the hooks on the calling thread.
  bool set(std::exception_ptr cause);
  bool set(const std::string& message);

  bool failed() const noexcept;
  std::string message() const;  // the cause's message; empty while not failed
  // Throws the cause; does nothing while not failed.
  void rethrow() const;
  // Calls `hook` with the message when the flag is set, or at once if it is already set. The hook must not
  // throw or block.
  void on_failure(std::function<void(const std::string& message)> hook);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

class Stream;

// A point in a stream's order: done when everything that was submitted before it is done. A plain value. A
// default event is done. Valid while its stream lives.
struct Event {
  Stream* stream = nullptr;
  std::uint64_t ticket = 0;
};

// One operation of a stream. `context` must live until it has run. An exception from it fails the stream.
struct Task {
  void (*run)(void* context, std::uint64_t argument) = nullptr;
  void* context = nullptr;
  std::uint64_t argument = 0;
};

struct StreamOptions {
  std::string name = "stream";  // shown in errors; its first 15 characters name the thread
  bool on_caller = false;       // true: run() runs the task at once on the calling thread, as for the compute
                                // lane
  int capacity = 1024;          // most operations in flight; beyond it run() and wait() block. At least 1
  std::vector<int> cpus = {};   // cores the stream's thread may use; empty: any. Not with on_caller
  bool urgent = false;          // on a GPU: its kernels are scheduled before those of other streams
};

// An ordered queue of operations. One thread at a time may submit (run, wait, record). Any thread may call
// synchronize() and done(). Nothing is allocated per operation.
//
// On a GPU, run() runs the task at once on the calling thread, with the GPU current there. The task enqueues
// its work on native() and does not wait for it; events are points in that order. `capacity` then counts
// events: a record() beyond it blocks until the oldest event is done. For an event of a make_host_stream()
// stream the GPU waits. For an event of any other CPU stream the caller waits.
//
// Failure: a task that throws fails the stream and sets the device's failure flag. Later operations are
// skipped, and every wait for an event at or after the failure throws what the flag holds: the rank's first
// cause, with its type. A stream on the caller throws from run() and wait() directly. A wait also throws when
// the flag is set elsewhere or the device's deadline passes (EnvironmentError naming the stream). A kernel
// that fails is noticed at the next wait for, query of or record of an event after it.
class Stream {
 public:
  virtual ~Stream() = default;  // skips what has not begun and ends its thread; never communicates
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

  // Blocks until everything submitted so far is done.
  void synchronize() { synchronize(record()); }
};

// Times at which a device's streams reach points of their order, by the device's own clock. A GPU takes the
// time between two of its kernels; the CPU takes it when the task that marks is run. Slots are made up front,
// and nothing is allocated per mark. Marks time a step; streams wait for each other by Event.
class Marks {
 public:
  virtual ~Marks() = default;
  Marks() = default;
  Marks(const Marks&) = delete;
  Marks& operator=(const Marks&) = delete;

  // Synchronizes `stream`, which is one of the device's. Its return is time 0. On a GPU the clocks of host
  // and device agree to half of the time in which an idle stream answers, which is microseconds. A late
  // answer is asked for again, a few times.
  virtual void begin(Stream& stream) = 0;
  // Stores in `slot` the time at which `stream` has done all that came before. `stream` is one of the
  // device's or its host's. Call it from a task of the stream, or, if the stream is on the caller, where its
  // tasks are submitted. Several threads may mark different slots at the same time.
  virtual void mark(std::size_t slot, Stream& stream) = 0;
  // µs from begin() to the mark. The slot must have been marked since begin(), and its stream waited for.
  virtual double us(std::size_t slot) const = 0;
};

// Work that streams of a device were given and did not do, because it was captured: kernels, copies and
// fills, with the order that the streams and their events give them. One call then does all of it, as often
// as wanted. What it was given by value, such as a kernel's arguments, stays as it was; memory that it names
// is read anew each time, and must live as long.
class CapturedWork {
 public:
  virtual ~CapturedWork() = default;
  CapturedWork() = default;
  CapturedWork(const CapturedWork&) = delete;
  CapturedWork& operator=(const CapturedWork&) = delete;

  // Does it once, behind what `stream` was given before. EnvironmentError where the driver refuses.
  virtual void launch(Stream& stream) = 0;
  virtual std::size_t operations() const = 0;
};

struct ArenaOptions {
  std::int64_t bytes = 0;
  std::int64_t stagger_bytes = 0;  // distance of the base from a 2 MiB boundary; a multiple of 256
  bool huge_pages = true;          // asks for transparent huge pages; goes on without them if refused
  bool fill_poisoned = false;      // poison() also fills with bytes 0xFF, a NaN in every type
  // Takes memory that other processes of this host can map, all pages at once. If the system has none, the
  // memory is private; Arena::file() tells which.
  bool shared = false;
  // Bytes of address space, without pages, that are to lie directly before the arena's base: for pointers
  // that are made by subtracting from one into the arena. Where the system refuses, there are none:
  // Arena::address_space_before() tells which.
  std::int64_t address_space_before = 0;
};

// The file that other processes map to see a shared arena.
struct ArenaFile {
  int descriptor = -1;  // -1: the arena is private
  std::int64_t base_offset = 0;
  std::int64_t bytes = 0;  // up to the arena's end
};

// Memory that a device other than the CPU gives to an arena. Zero when taken; given back when destroyed.
class ArenaMemory {
 public:
  virtual ~ArenaMemory() = default;
  ArenaMemory() = default;
  ArenaMemory(const ArenaMemory&) = delete;
  ArenaMemory& operator=(const ArenaMemory&) = delete;

  virtual std::byte* base() const = 0;
  // Sets each byte to `value`, after everything submitted to the device's streams so far and before
  // everything submitted later.
  virtual void fill(std::int64_t offset, std::int64_t bytes, int value) = 0;
};

// An allocator for an arena, in place of the device's own. Both functions are called with the device current
// on the calling thread, and while nothing uses the arena.
struct ArenaSource {
  std::function<void*(std::int64_t bytes)> take = {};  // returns null to refuse; the device's own allocator
                                                       // is then used
  std::function<void(void* memory)> give_back = {};    // must not throw

  explicit operator bool() const { return take != nullptr; }
};

// One range of bytes, taken once and given back when destroyed. Zero when taken. Can be moved, not copied.
class Arena {
 public:
  Arena() = default;
  // Throws EnvironmentError naming the bytes if the system refuses them.
  explicit Arena(const ArenaOptions& options);
  // An arena over a device's memory of `bytes` bytes.
  Arena(std::unique_ptr<ArenaMemory> memory, std::int64_t bytes, bool fill_poisoned);
  ~Arena();
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;

  std::byte* base() const { return base_; }
  std::int64_t bytes() const { return bytes_; }

  // Under AddressSanitizer, poison() makes every access to a range an error and unpoison() allows it again.
  // Ranges begin and end at multiples of 8, or at the arena's end. A device's memory is only filled, and only
  // with fill_poisoned.
  void poison(std::int64_t offset, std::int64_t bytes);
  void unpoison(std::int64_t offset, std::int64_t bytes);

  const ArenaFile& file() const { return file_; }
  // All that ArenaOptions asked for, or 0. No page of it is ever there, nor in a core dump; an access is a
  // segmentation fault.
  std::int64_t address_space_before() const { return address_space_before_; }
  // Keeps `user` alive until just before the memory is given back.
  void attach(std::shared_ptr<void> user);

 private:
  void check(const char* what, std::int64_t offset, std::int64_t bytes) const;
  void open_behind_reserved();
  void share(std::int64_t offset);
  void take_all(bool huge_pages);
  [[noreturn]] void refuse(int code);
  void give_back() noexcept;

  std::byte* base_ = nullptr;
  std::int64_t bytes_ = 0;
  void* mapping_ = nullptr;
  std::size_t mapping_bytes_ = 0;
  std::int64_t address_space_before_ = 0;
  std::size_t reserved_bytes_ = 0;       // whole pages of it, before the mapping
  std::unique_ptr<ArenaMemory> memory_;  // in place of the mapping
  bool fill_poisoned_ = false;
  ArenaFile file_;
  std::vector<std::shared_ptr<void>> users_;
};

// Bytes in use by category, and their peaks. Thread-safe.
class ByteCounters {
 public:
  void add(Category category, std::int64_t bytes);  // a negative number gives back
  std::int64_t current(Category category) const;
  std::int64_t peak(Category category) const;
  std::int64_t current_total() const { return total_.load(); }
  std::int64_t peak_total() const { return peak_total_.load(); }

 private:
  std::array<std::atomic<std::int64_t>, kCategories> current_{}, peak_{};
  std::atomic<std::int64_t> total_{0}, peak_total_{0};
};

struct CpuDeviceOptions {
  int rank = 0;                          // staggers the arena; appears in errors
  Waiting waiting = Waiting::automatic;  // for this device's streams
  int busy_threads = 0;  // busy at the same time in this process, for `automatic`; 0: not known, so block
                         // soon
  std::chrono::milliseconds deadline{600'000};  // limit of a wait between streams, and of ending a stream
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
  // Memory of the device. `shared` and `address_space_before` as in ArenaOptions; a GPU's memory is always
  // private, and it reserves no addresses, as the host dereferences none of them. A GPU asks `source` first;
  // the CPU ignores it.
  virtual Arena make_arena(std::int64_t bytes, bool shared = false, const ArenaSource& source = {},
                           std::int64_t address_space_before = 0) = 0;
  // Exactly these bytes of the host's memory, from and to which the device copies without staging (pinned).
  // The base is a multiple of 4096.
  virtual Arena make_host_arena(std::int64_t bytes) = 0;
  virtual std::unique_ptr<Stream> make_stream(const StreamOptions& options) = 0;
  // A stream of the CPU, whatever the device. Its tasks work on the host and may block. If a GPU's copy waits
  // for one of its events, the memory must be in a host arena: other memory may be read as soon as the copy
  // is submitted.
  virtual std::unique_ptr<Stream> make_host_stream(const StreamOptions& options) = 0;
  // Marks for streams of either kind, at most `slots` of them between two begin() calls.
  virtual std::unique_ptr<Marks> make_marks(std::size_t slots) = 0;
  // What is slower or less here than it could be, and why: a sentence each. Empty where all is as it should
  // be.
  virtual std::vector<std::string> notices() const { return {}; }
  virtual FailureFlag failure() const = 0;
  virtual ByteCounters& counters() = 0;

  // copy() copies bytes between the host and the device, or within either; fill() sets each byte to `value`.
  // They run in the order of `stream` if called from one of its tasks. On the CPU the work is done on return.
  // On a GPU it is only enqueued: host memory must stay unchanged until an event recorded after the call is
  // done. The call may block if the host memory is not pinned.
  virtual void copy(Stream& stream, void* to, const void* from, std::int64_t bytes) = 0;
  virtual void fill(Stream& stream, void* to, int value, std::int64_t bytes) = 0;

  // From here to end_capture(), what the calling thread gives these streams is captured instead of done. They
  // are this device's and idle; the first one is where the work will begin and end. Meanwhile the host waits
  // for none of their events: that is an EnvironmentError. So is a refusal of the driver; the CPU throws
  // UnsupportedError.
  virtual void begin_capture(std::span<Stream* const> streams);
  // Returns what was captured; the streams do again what they are given. Events that were recorded meanwhile
  // are done. EnvironmentError if the driver refuses something of it; it is then lost.
  virtual std::unique_ptr<CapturedWork> end_capture();
  // Ends a capture and drops what it has. Does nothing if there is none.
  virtual void drop_capture() noexcept {}
};

std::unique_ptr<Device> make_cpu_device(const CpuDeviceOptions& options);

struct CudaDeviceOptions {
  int rank = 0;                                 // appears in errors
  int ordinal = 0;                              // which of the GPUs that the driver shows this process
  std::chrono::milliseconds deadline{600'000};  // limit of a wait for an event, and of ending a stream
  // See ArenaOptions. The fills order the streams among each other. Host memory is not filled.
  bool fill_poisoned = false;
};

// One GPU. It becomes, and stays, the current GPU of every thread that works with the device. Throws
// UnsupportedError in a build without CUDA, and EnvironmentError with the reason if the machine has no driver
// or no such GPU.
std::unique_ptr<Device> make_cuda_device(const CudaDeviceOptions& options);

struct DeviceOptions {
  int rank = 0;
  int ordinal = 0;                       // which GPU, for DeviceType::cuda
  Waiting waiting = Waiting::automatic;  // for the CPU's streams, as is the next
  int busy_threads = 0;
  std::chrono::milliseconds deadline{600'000};
  bool fill_poisoned = false;
};
// make_cpu_device() or make_cuda_device().
std::unique_ptr<Device> make_device(DeviceType type, const DeviceOptions& options);

}  // namespace tessera
