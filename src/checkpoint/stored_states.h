// Finds the files of a checkpoint that hold the elements of a flat's state, for any mesh and placements that
// wrote them. This works because a flat's parameters have the same offsets for every number of shards.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <vector>

#include "src/checkpoint/open_file.h"

namespace tessera::checkpoint {

// A file whose header was read. It is not kept open, because the files of many ranks are more than a process
// may have open.
struct StoredFile {
  std::filesystem::path path;
  Header header;
};

// Elements [begin, end) of a flat's state, as they are stored.
struct StoredPiece {
  const StoredFile* file = nullptr;
  const StoredBuffer* buffer = nullptr;
  std::int64_t begin = 0, end = 0;
};

class StoredStates {
 public:
  // Reads the header of rank 0's file, which always exists and has the run's state. Throws UsageError naming
  // what differs unless it has the units and the optimizer of `engine`.
  StoredStates(std::filesystem::path folder, const Engine& engine);

  const Header& header() const { return files_.at(0).header; }
  // The buffers that overlap elements [begin, end), ascending. Together they cover all stored elements of the
  // range, which are all but the padding after the flat's last parameter. Reads the headers of their files.
  // Throws EnvironmentError naming what is missing or damaged.
  std::vector<StoredPiece> find(FlatId flat, StateKind state, std::int64_t begin, std::int64_t end);

 private:
  const Mesh& mesh() const { return header().mesh; }  // that wrote the checkpoint
  const StoredFile& file_of(int rank);
  // The file that holds the first elements of the flat's state.
  const StoredFile& first_file(FlatId flat, StateKind state);

  const std::filesystem::path folder_;
  const Header here_;
  const DType moment_type_;          // of this engine and, as was checked, of the checkpoint
  std::map<int, StoredFile> files_;  // by the rank that wrote the file
  std::optional<Layout> layout_;     // of the run that wrote the checkpoint
};

}  // namespace tessera::checkpoint
