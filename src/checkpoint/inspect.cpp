// inspect_checkpoint().
#include <fmt/format.h>

#include <algorithm>

#include "src/checkpoint/folder.h"
#include "src/checkpoint/open_file.h"

namespace tessera {

namespace {

namespace fs = std::filesystem;
using namespace checkpoint;

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".tessera") files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

CheckpointInfo info_of(const Header& header) {
  CheckpointInfo info;
  info.state = header.state;
  info.counters = header.counters;
  info.mesh = header.mesh;
  info.placements = header.placements;
  info.layout = header.layout;
  info.units = static_cast<int>(header.units.size());
  info.parameter_numel = header.parameter_numel;
  return info;
}

// What is wrong with a file beside that of rank 0; empty where nothing is.
std::string problem_of(const OpenFile& file, const Header& first) {
  const fs::path& path = file.reader.path();
  const int rank = file.header.rank;
  if (!first.ranks.empty() && std::ranges::find(first.ranks, rank) == first.ranks.end())
    return fmt::format("checkpoint file '{}' is of rank {}, which stored nothing in this checkpoint",
                       path.string(), rank);
  // The rank that its name promises.
  for (const int named : first.ranks.empty() ? std::vector{rank} : first.ranks) {
    if (path.filename() != file_name(named)) continue;
    try {
      check_belongs(file, named, first);
      return {};
    } catch (const EnvironmentError& error) {
      return error.what();
    }
  }
  return fmt::format("checkpoint file '{}' was written by rank {}, whose file is '{}'", path.string(), rank,
                     file_name(rank));
}

std::vector<std::string> missing_files(const fs::path& folder, const Header& first) {
  std::vector<std::string> problems;
  for (const int rank : first.ranks)
    if (const fs::path path = folder / file_name(rank); !fs::exists(path))
      problems.push_back(
          fmt::format("checkpoint file '{}' is missing: {} ranks stored something, rank {} too",
                      path.string(), first.ranks.size(), rank));
  return problems;
}

void verify_buffers(const OpenFile& file) {
  for (const StoredBuffer& stored : file.header.buffers) {
    BufferReader reader(file.reader, stored);
    reader.read(0, stored.bytes, [](std::span<const std::byte>) {});
    reader.finish();
  }
}

}  // namespace

CheckpointInfo inspect_checkpoint(const fs::path& path, bool verify) {
  const fs::path folder = resolve(path);
  const Header first = OpenFile(folder / file_name(0)).header;
  CheckpointInfo info = info_of(first);
  info.path = folder;
  info.problems = missing_files(folder, first);
  const std::vector<fs::path> files = files_in(folder);
  for (const fs::path& name : files) {
    const OpenFile file(name);
    if (std::string problem = problem_of(file, first); !problem.empty()) info.problems.push_back(problem);
    info.files.push_back({.name = name.filename().string(),
                          .rank = file.header.rank,
                          .bytes = file.reader.bytes(),
                          .buffers = static_cast<int>(file.header.buffers.size())});
  }
  if (!verify) return info;
  // What costs nothing to tell comes before all is read.
  if (!info.problems.empty()) throw EnvironmentError(info.problems.front());
  for (const fs::path& name : files) verify_buffers(OpenFile(name));
  return info;
}

}  // namespace tessera
