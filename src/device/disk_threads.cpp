// Blocks moved by a few threads, the caller one of them, each with one request at a time.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "src/device/disk_queue.h"
#include "tessera/machine.h"

namespace tessera::device {
namespace {

class ThreadQueue final : public DiskQueue {
 public:
  ThreadQueue(const DiskFile& file, std::int64_t block_bytes, int threads, std::string reason)
      : file_(file), block_bytes_(block_bytes), reason_(std::move(reason)) {
    for (int i = 1; i < threads; ++i)
      helpers_.emplace_back([this](const std::stop_token& stop) { serve(stop); });
  }

  void move(const Transfer& transfer) override {
    std::unique_lock lock(mutex_);
    transfer_ = transfer;
    done_ = 0;
    error_ = nullptr;
    work_.notify_all();
    move_blocks(lock);
    idle_.wait(lock, [&] { return busy_ == 0; });
    if (error_) std::rethrow_exception(error_);
  }

  std::string description() const override {
    return fmt::format("{} threads of pread and pwrite ({})", helpers_.size() + 1, reason_);
  }

 private:
  bool blocks_left() const { return done_ < transfer_.bytes && !error_; }

  void serve(const std::stop_token& stop) {
    bind_thread({}, "disk");
    std::unique_lock lock(mutex_);
    while (work_.wait(lock, stop, [&] { return blocks_left(); })) move_blocks(lock);
  }

  void move_blocks(std::unique_lock<std::mutex>& lock) {
    ++busy_;
    while (blocks_left()) {
      const Transfer block = transfer_.block(done_, block_bytes_);
      done_ += block.bytes;
      lock.unlock();
      std::exception_ptr error;
      try {
        move_block(block);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      if (error && !error_) error_ = error;
    }
    if (--busy_ == 0) idle_.notify_one();
  }

  void move_block(Transfer rest) const {
    while (rest.bytes > 0) {
      const auto bytes = static_cast<std::size_t>(rest.bytes);
      const ssize_t moved = rest.write ? pwrite(file_.descriptor(), rest.memory, bytes, rest.offset)
                                       : pread(file_.descriptor(), rest.memory, bytes, rest.offset);
      if (moved < 0 && errno == EINTR) continue;
      file_.advance(rest, moved < 0 ? -errno : moved);
    }
  }

  const DiskFile& file_;
  const std::int64_t block_bytes_;
  const std::string reason_;
  std::mutex mutex_;  // of all below
  std::condition_variable_any work_;
  std::condition_variable idle_;
  Transfer transfer_;
  std::int64_t done_ = 0;  // bytes of it that a thread has taken
  int busy_ = 0;           // threads at it
  std::exception_ptr error_;
  std::vector<std::jthread> helpers_;  // stopped and joined first
};

}  // namespace

std::unique_ptr<DiskQueue> make_thread_queue(const DiskFile& file, std::int64_t block_bytes, int threads,
                                             const std::string& reason) {
  return std::make_unique<ThreadQueue>(file, block_bytes, threads, reason);
}

}  // namespace tessera::device
