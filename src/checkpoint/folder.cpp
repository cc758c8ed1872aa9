#include "src/checkpoint/folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "src/checkpoint/replace.h"
#include "tessera/checkpoint.h"

namespace tessera::checkpoint {

namespace fs = std::filesystem;

namespace {

// The step of "step-00000100"; −1 for any other name.
std::int64_t step_of(const std::string& name) {
  if (!name.starts_with("step-") || name.size() < 6 || name.size() > 23) return -1;
  if (name.find_first_not_of("0123456789", 5) != std::string::npos) return -1;
  return std::stoll(name.substr(5));
}

bool is_temporary(const std::string& name) { return name.starts_with("step-") && name.ends_with(".tmp"); }

bool is_checkpoint(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path / file_name(0), ignored);
}

}  // namespace

std::string step_name(std::int64_t step) { return fmt::format("step-{:08}", step); }
std::string file_name(int rank) { return fmt::format("rank-{:05}.tessera", rank); }

std::vector<fs::path> checkpoints_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    if (step_of(entry->path().filename().string()) >= 0 && is_checkpoint(entry->path()))
      found.push_back(entry->path());
  std::sort(found.begin(), found.end(), [](const fs::path& a, const fs::path& b) {
    return step_of(a.filename().string()) < step_of(b.filename().string());
  });
  return found;
}

fs::path resolve(const fs::path& path) {
  if (is_checkpoint(path)) return path;
  if (const auto latest = latest_checkpoint(path)) return *latest;
  throw UsageError(fmt::format("there is no checkpoint in '{}'", path.string()));
}

void remove_temporaries(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (is_temporary(entry.path().filename().string())) found.push_back(entry.path());
  for (const fs::path& path : found)
    if (!restore_aside(path)) fs::remove_all(path);
}

void prune(const fs::path& folder, int keep, const fs::path& kept) {
  std::vector<fs::path> all = checkpoints_in(folder);
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < all.size(); ++i)
    if (all[i] != kept) remove_folder(all[i]);
}

}  // namespace tessera::checkpoint

namespace tessera {

std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& folder) {
  std::ifstream in(folder / checkpoint::kLatest);
  std::string name;
  if (in && std::getline(in, name) && checkpoint::step_of(name) >= 0 &&
      checkpoint::is_checkpoint(folder / name))
    return folder / name;
  const std::vector<std::filesystem::path> all = checkpoint::checkpoints_in(folder);
  if (all.empty()) return std::nullopt;
  return all.back();
}

}  // namespace tessera
