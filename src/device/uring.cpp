// Blocks moved by io_uring: up to `depth` requests in flight from one thread.
#include <fmt/format.h>
#include <liburing.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <system_error>
#include <vector>

#include "src/device/disk_queue.h"
#include "tessera/error.h"
#include "tessera/id_vector.h"
#include "tessera/machine.h"

namespace tessera::device {
namespace {

constexpr std::int64_t kPieceBytes = std::int64_t{1} << 30;  // the most that one registered buffer may have

std::string text_of(int code) { return std::generic_category().message(code); }

class Ring {
 public:
  explicit Ring(int depth) {
    if (const int code = io_uring_queue_init(static_cast<unsigned>(depth), &ring_, 0); code < 0)
      throw EnvironmentError(fmt::format("io_uring refused: {}", text_of(-code)));
  }
  ~Ring() { io_uring_queue_exit(&ring_); }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  io_uring* get() { return &ring_; }

 private:
  io_uring ring_{};
};

class UringQueue final : public DiskQueue {
 public:
  UringQueue(const DiskFile& file, std::int64_t block_bytes, int depth)
      : file_(file), block_bytes_(block_bytes), ring_(depth), rests_(depth) {
    io_uring_probe* probe = io_uring_get_probe_ring(ring_.get());
    const bool enough = probe != nullptr && io_uring_opcode_supported(probe, IORING_OP_READ) != 0;
    io_uring_free_probe(probe);
    if (!enough) throw EnvironmentError("io_uring here has no plain reads, which Linux has since 5.6");
    const int descriptor = file.descriptor();
    if (const int code = io_uring_register_files(ring_.get(), &descriptor, 1); code < 0)
      throw EnvironmentError(fmt::format("io_uring refused the file: {}", text_of(-code)));
    for (int slot = depth - 1; slot >= 0; --slot) free_.push_back(slot);
  }
  ~UringQueue() override { register_memory(nullptr, 0); }

  void move(const Transfer& transfer) override;
  void register_memory(std::byte* base, std::int64_t bytes) override;
  std::string description() const override { return "io_uring"; }
  std::string buffers() const override { return buffers_; }

 private:
  void issue(int slot);
  void complete(int slot, int result);
  int piece_of(const Transfer& rest) const;

  const DiskFile& file_;
  const std::int64_t block_bytes_;
  Ring ring_;
  IdVector<Transfer> rests_;  // of the requests in flight, by slot
  std::vector<int> free_;     // slots without one
  std::exception_ptr error_;
  std::byte* base_ = nullptr;  // of the registered memory
  std::int64_t registered_bytes_ = 0;
  std::string buffers_;
};

// The number of the registered piece that holds all of it; -1: none.
int UringQueue::piece_of(const Transfer& rest) const {
  if (rest.memory < base_ || rest.memory + rest.bytes > base_ + registered_bytes_) return -1;
  const std::int64_t first = (rest.memory - base_) / kPieceBytes;
  const std::int64_t last = (rest.memory + rest.bytes - 1 - base_) / kPieceBytes;
  return first == last ? static_cast<int>(first) : -1;
}

void UringQueue::issue(int slot) {
  const Transfer& rest = rests_[slot];
  io_uring_sqe* entry = io_uring_get_sqe(ring_.get());  // as many as slots: there is one
  const int piece = piece_of(rest);
  const auto bytes = static_cast<unsigned>(rest.bytes);
  const auto offset = static_cast<std::uint64_t>(rest.offset);
  if (piece >= 0 && rest.write)
    io_uring_prep_write_fixed(entry, 0, rest.memory, bytes, offset, piece);
  else if (piece >= 0)
    io_uring_prep_read_fixed(entry, 0, rest.memory, bytes, offset, piece);
  else if (rest.write)
    io_uring_prep_write(entry, 0, rest.memory, bytes, offset);
  else
    io_uring_prep_read(entry, 0, rest.memory, bytes, offset);
  io_uring_sqe_set_flags(entry, IOSQE_FIXED_FILE);  // file 0 of those registered
  io_uring_sqe_set_data64(entry, static_cast<std::uint64_t>(slot));
}

void UringQueue::complete(int slot, int result) {
  Transfer& rest = rests_[slot];
  if (result != -EINTR && result != -EAGAIN) {
    try {
      file_.advance(rest, result);
    } catch (...) {
      if (!error_) error_ = std::current_exception();
      rest.bytes = 0;
    }
  }
  if (rest.bytes > 0)
    issue(slot);
  else
    free_.push_back(slot);
}

// The memory is the caller's, so even after an error all that is in flight ends here.
void UringQueue::move(const Transfer& transfer) {
  error_ = nullptr;
  std::int64_t done = 0;
  while (true) {
    while (done < transfer.bytes && !error_ && !free_.empty()) {
      const int slot = free_.back();
      free_.pop_back();
      rests_[slot] = transfer.block(done, block_bytes_);
      done += rests_[slot].bytes;
      issue(slot);
    }
    if (free_.size() == rests_.size()) break;
    const int code = io_uring_submit_and_wait(ring_.get(), 1);
    if (code < 0 && code != -EINTR && code != -EAGAIN && code != -EBUSY)
      file_.refuse(transfer, fmt::format("io_uring says: {}", text_of(-code)));
    for (io_uring_cqe* entry = nullptr; io_uring_peek_cqe(ring_.get(), &entry) == 0;) {
      const auto slot = static_cast<int>(io_uring_cqe_get_data64(entry));
      const int result = entry->res;
      io_uring_cqe_seen(ring_.get(), entry);
      complete(slot, result);
    }
  }
  if (error_) std::rethrow_exception(error_);
}

void UringQueue::register_memory(std::byte* base, std::int64_t bytes) {
  if (registered_bytes_ > 0) io_uring_unregister_buffers(ring_.get());
  registered_bytes_ = 0;
  buffers_.clear();
  if (bytes == 0) return;
  std::vector<iovec> pieces;
  for (std::int64_t begin = 0; begin < bytes; begin += kPieceBytes)
    pieces.push_back({base + begin, static_cast<std::size_t>(std::min(kPieceBytes, bytes - begin))});
  const int code =
      io_uring_register_buffers(ring_.get(), pieces.data(), static_cast<unsigned>(pieces.size()));
  if (code < 0) {
    rlimit limit{};
    const bool limited = getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    buffers_ = fmt::format("buffers not registered ({}{})", text_of(-code),
                           limited ? fmt::format("; {} bytes may be locked", limit.rlim_cur) : "");
    return;
  }
  base_ = base;
  registered_bytes_ = bytes;
  buffers_ = "registered buffers";
}

}  // namespace

std::unique_ptr<DiskQueue> make_uring_queue(const DiskFile& file, std::int64_t block_bytes, int depth) {
  return std::make_unique<UringQueue>(file, block_bytes, depth);
}

}  // namespace tessera::device

namespace tessera {

UringMachine read_uring_machine() {
  try {
    const device::Ring ring(1);
    return {.built = true, .unusable = ""};
  } catch (const EnvironmentError& error) {
    return {.built = true, .unusable = error.what()};
  }
}

}  // namespace tessera
