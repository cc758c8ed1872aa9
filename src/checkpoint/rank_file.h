// One rank's file of a checkpoint while it is written, by a thread of its own: first the buffers, which keep
// what they hold until wait_read() returns, then, behind complete(), the header that tells of them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "src/checkpoint/buffers.h"
#include "src/checkpoint/file.h"
#include "src/checkpoint/header.h"

namespace tessera::checkpoint {

class RankFile {
 public:
  // Makes the file, with room for all of it, and the thread, which reads by the engine's read_beside(). What
  // lies on the disk is read and written here already. `header` has all but buffers and contents.
  // EnvironmentError with path and reason.
  RankFile(const std::filesystem::path& path, Engine& engine, Header header,
           const std::vector<PersistentBuffer>& stored);
  // Ends the writing wherever it is; the file stays as it is then.
  ~RankFile();
  RankFile(const RankFile&) = delete;
  RankFile& operator=(const RankFile&) = delete;

  // Returns when all buffers have been read; throws what that, or their writing, failed with.
  void wait_read();
  // For an engine that goes: nothing is read of it any more; where something is missing, it has failed.
  void stop_reading();
  // Of the buffers' checksums. Behind wait_read().
  std::uint64_t checksum() const;
  // Behind wait_read(): writes the header, with this hash of what all ranks store, and syncs the file.
  void complete(std::uint64_t contents);
  // Whether finish() would return at once.
  bool done() const;
  // Behind complete(): returns when the file is on the disk; throws what it failed with.
  void finish();

 private:
  enum class Stage { reading, read, done, failed };
  // Where the thread finds buffer `index` of the header.
  struct Source {
    std::size_t index = 0;
    PersistentBuffer buffer;
    std::span<const std::byte> there;  // empty where the host cannot address it
  };

  template <class Read>
  void write_buffer(StoredBuffer& buffer, const Read& read);
  void run() noexcept;
  void write_sources();
  void check_reading();
  bool told_contents();  // false where nothing more is to be written
  bool ends();
  void write_header();
  void reach(Stage stage, std::exception_ptr error = nullptr);
  void wait_for(bool (*enough)(Stage));

  const Engine& engine_;
  Header header_;
  FileWriter file_;
  std::vector<Source> sources_;
  std::vector<std::byte> piece_;  // on its way

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Stage stage_ = Stage::reading;
  std::exception_ptr error_;  // where it failed
  bool complete_ = false;     // header_.contents is set
  bool reading_ends_ = false;
  bool writing_ends_ = false;
  std::thread thread_;
};

}  // namespace tessera::checkpoint
