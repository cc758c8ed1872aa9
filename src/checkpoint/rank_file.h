// One rank's file of a checkpoint while a thread writes it. First come the buffers, which must not change
// until wait_read() returns; then, after complete(), the header that describes them.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "src/checkpoint/buffers.h"
#include "src/checkpoint/file.h"
#include "src/checkpoint/header.h"
#include "src/device/thread.h"
#include "src/device/wait.h"

namespace tessera::checkpoint {

class RankFile {
 public:
  // Makes the file, with space for all of it, and starts the thread, which reads by Engine::read_beside().
  // Buffers that lie on the disk are already read and written here. `header` has everything but `buffers` and
  // `contents`. Throws EnvironmentError with path and reason.
  RankFile(const std::filesystem::path& path, Engine& engine, Header header,
           const std::vector<PersistentBuffer>& stored);
  // Stops the writing wherever it is. The file stays as it then is.
  ~RankFile();
  RankFile(const RankFile&) = delete;
  RankFile& operator=(const RankFile&) = delete;

  // Returns when all buffers have been read. Throws the error of reading or writing them.
  void wait_read();
  // For an engine that is about to be destroyed: when this returns, nothing more is read from it. If
  // something was still missing, the writing has failed.
  void stop_reading();
  // A hash of the buffers' checksums. Call after wait_read().
  std::uint64_t checksum() const;
  // Call after wait_read(). Lets the thread write the header, with this hash of what all ranks store, and
  // sync the file.
  void complete(std::uint64_t contents);
  // Whether finish() would return at once.
  bool done() const;
  // Call after complete(). Returns when the file is on the disk, or throws the error.
  void finish();

 private:
  enum class Stage { reading, read, done, failed };
  // Where the thread reads buffer `index` of the header.
  struct Source {
    std::size_t index = 0;
    PersistentBuffer buffer;
    std::span<const std::byte> there;  // empty if the host cannot address it
  };

  template <class Read>
  void write_buffer(StoredBuffer& buffer, const Read& read);
  void run() noexcept;
  void write_sources();
  void check_reading();
  bool told_contents();  // false if nothing more is to be written
  bool ends();
  void write_header();
  void reach(Stage stage, std::exception_ptr error = nullptr);
  void wait_for(bool (*enough)(Stage));
  template <class Ready>
  void wait(const Ready& ready);  // ready() is called under the mutex

  const Engine& engine_;
  Header header_;
  FileWriter file_;
  std::vector<Source> sources_;
  std::vector<std::byte> piece_;  // being copied to the file

  mutable std::mutex mutex_;
  device::Signal changed_;  // of what follows
  Stage stage_ = Stage::reading;
  std::exception_ptr error_;  // the error, in Stage::failed
  bool complete_ = false;     // header_.contents is set
  bool reading_ends_ = false;
  bool writing_ends_ = false;
  device::Thread thread_;
};

}  // namespace tessera::checkpoint
