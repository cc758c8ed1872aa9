// Reads stored buffers by runs, as StoredStates finds them.
#pragma once

#include <map>
#include <memory>
#include <utility>

#include "src/checkpoint/stored_states.h"

namespace tessera::checkpoint {

// The stored buffers that are being read: one of each flat and tensor rank that stored it, as runs of it
// mostly ascend.
class OpenBuffers {
 public:
  template <class Use>
  void read(const StoredRun& run, std::int64_t element, const Use& use) {
    std::unique_ptr<Open>& open = open_[{run.buffer->flat, run.tensor_rank}];
    if (!open || open->buffer != run.buffer) {
      if (open) open->reader.finish();
      open = std::make_unique<Open>(run);
    }
    open->reader.read(run.stored * element, (run.stored + run.numel) * element, use);
  }
  // Checks what read() could not, and closes all. Throws as BufferReader::finish() does.
  void finish() {
    for (const auto& [of, open] : open_) open->reader.finish();
    open_.clear();
  }

 private:
  struct Open {
    explicit Open(const StoredRun& run)
        : file(run.file->path), buffer(run.buffer), reader(file, *run.buffer) {}
    FileReader file;
    const StoredBuffer* buffer;
    BufferReader reader;
  };
  std::map<std::pair<FlatId, int>, std::unique_ptr<Open>> open_;
};

}  // namespace tessera::checkpoint
