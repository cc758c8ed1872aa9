// Which files of a checkpoint hold the elements of a flat's state, whatever mesh and placements wrote them: a
// flat's parameters have the same offsets for every number of shards.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <vector>

#include "src/checkpoint/open_file.h"

namespace tessera::checkpoint {

// A file whose header was read. It is not kept open: those of many ranks are more than a process may have.
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
  // Reads the header of rank 0's file, which has the run's state even where it stores no buffer. UsageError
  // naming what differs unless it is of the units and the optimizer of `engine`.
  StoredStates(std::filesystem::path folder, const Engine& engine);

  const Header& header() const { return files_.at(0).header; }
  // The buffers that meet elements [begin, end), ascending; together they cover what of these was stored: all
  // but padding behind the flat's last parameter. Reads their files' headers. EnvironmentError naming
  // what is missing or damaged.
  std::vector<StoredPiece> find(FlatId flat, State state, std::int64_t begin, std::int64_t end);

 private:
  const Mesh& mesh() const { return header().mesh; }  // that wrote
  const StoredFile& file_of(int rank);
  // The file that holds the first elements of the flat's state.
  const StoredFile& first_file(FlatId flat, State state);

  const std::filesystem::path folder_;
  const Header here_;
  const DType moment_type_;          // here and, as checked, there
  std::map<int, StoredFile> files_;  // by the rank that wrote
  std::optional<Layout> layout_;     // of the run that wrote
};

}  // namespace tessera::checkpoint
