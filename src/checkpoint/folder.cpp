#include "src/checkpoint/folder.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "src/checkpoint/agree.h"
#include "src/checkpoint/file.h"
#include "src/checkpoint/replace.h"
#include "tessera/checkpoint.h"

namespace tessera::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr int kLooks = 4;  // at `latest`, which a save may repoint meanwhile

// The step of "step-00000100"; −1 for any other name.
std::int64_t step_of(const std::string& name) {
  if (!name.starts_with("step-") || name.size() < 6 || name.size() > 23) return -1;
  if (name.find_first_not_of("0123456789", 5) != std::string::npos) return -1;
  return std::stoll(name.substr(5));
}

bool is_temporary(const std::string& name) { return name.starts_with("step-") && name.ends_with(".tmp"); }

[[noreturn]] void cannot_look_at(const fs::path& path, const std::string& reason) {
  throw EnvironmentError(fmt::format("cannot look for a checkpoint at '{}': {}", path.string(), reason));
}

// Whether it is there. What cannot be told is no "no": EnvironmentError.
bool there(const fs::path& path, struct stat& status) {
  if (::stat(path.c_str(), &status) == 0) return true;
  if (errno != ENOENT) cannot_look_at(path, std::strerror(errno));
  if (::lstat(path.c_str(), &status) == 0) cannot_look_at(path, "a link to what is not there");
  return false;
}

bool there(const fs::path& path) {
  struct stat status {};
  return there(path, status);
}

// What is named as a step's folder, ascending.
std::vector<fs::path> steps_in(const fs::path& folder) {
  std::vector<fs::path> found;
  if (!there(folder)) return found;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (const fs::directory_iterator end; !error && entry != end; entry.increment(error))
    if (step_of(entry->path().filename().string()) >= 0) found.push_back(entry->path());
  if (error) cannot_look_at(folder, error.message());
  std::ranges::sort(found, {}, [](const fs::path& path) { return step_of(path.filename().string()); });
  return found;
}

// What `latest` says; empty where there is none.
std::string read_latest(const fs::path& folder) {
  const fs::path path = folder / kLatest;
  if (!there(path)) return "";
  const FileReader file(path);
  std::string text(static_cast<std::size_t>(std::min<std::int64_t>(file.bytes(), 256)), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  std::string name = text.substr(0, text.find('\n'));
  if (step_of(name) < 0)
    throw EnvironmentError(
        fmt::format("checkpoint file '{}' does not name a step's folder; "
                    "remove it to take the newest there",
                    path.string()));
  return name;
}

[[noreturn]] void refuse_latest(const fs::path& folder, const std::string& name) {
  const fs::path path = folder / name, aside = aside_of(path);
  std::string reason = "it is not there";
  if (there(path))
    reason = fmt::format("its file '{}' is missing", file_name(0));
  else if (there(aside))  // a save was killed as it replaced it
    reason = fmt::format("it is not there, but as '{}', which may be renamed", aside.string());
  throw EnvironmentError(
      fmt::format("the newest checkpoint, '{}', cannot be used: {}; write the name of another step's folder "
                  "into '{}', or remove that file to take the newest of the others",
                  path.string(), reason, (folder / kLatest).string()));
}

}  // namespace

std::string step_name(std::int64_t step) { return fmt::format("step-{:08}", step); }
std::string file_name(int rank) { return fmt::format("rank-{:05}.tessera", rank); }

bool is_checkpoint(const fs::path& path) {
  struct stat status {};
  if (!there(path) || !there(path / file_name(0), status)) return false;
  if (!S_ISREG(status.st_mode)) cannot_look_at(path / file_name(0), "not a regular file");
  return true;
}

std::vector<fs::path> checkpoints_in(const fs::path& folder) {
  std::vector<fs::path> found = steps_in(folder);
  std::erase_if(found, [](const fs::path& path) { return !is_checkpoint(path); });
  return found;
}

std::vector<fs::path> seen_checkpoints_in(const fs::path& folder) {
  std::vector<fs::path> found = steps_in(folder);
  std::error_code ignored;
  std::erase_if(found,
                [&](const fs::path& path) { return !fs::is_regular_file(path / file_name(0), ignored); });
  return found;
}

fs::path seen_latest(const fs::path& folder) {
  try {
    if (const std::string name = read_latest(folder); !name.empty()) return folder / name;
  } catch (const EnvironmentError&) {  // what names no checkpoint
  }
  return {};
}

fs::path resolve(const fs::path& path) {
  if (const auto latest = latest_checkpoint(path)) return *latest;
  throw UsageError(fmt::format("there is no checkpoint in '{}'", path.string()));
}

std::string remove_temporaries(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (is_temporary(entry.path().filename().string())) found.push_back(entry.path());
  std::string stays;
  for (const fs::path& path : found) {
    if (restore_aside(path)) continue;
    if (const std::string why = remove_temporary(path); stays.empty()) stays = why;
  }
  return stays;
}

std::string prune(const fs::path& folder, int keep, const fs::path& kept, const fs::path& before) {
  // What cannot be told stays, and ends no run that has just saved.
  std::vector<fs::path> all = seen_checkpoints_in(folder);
  const bool went_on = step_of(before.filename().string()) <= step_of(kept.filename().string());
  auto continued = std::ranges::find(all, went_on ? before : kept);
  if (continued == all.end()) continued = std::ranges::find(all, kept);
  if (continued != all.end()) std::rotate(all.begin(), continued + 1, all.end());
  if (std::erase(all, kept) > 0) all.push_back(kept);
  std::string stays;
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < all.size(); ++i)
    if (const std::string why = remove_folder(all[i]); stays.empty()) stays = why;
  return stays;
}

}  // namespace tessera::checkpoint

namespace tessera {

namespace fs = std::filesystem;

std::optional<fs::path> latest_checkpoint(const fs::path& folder) {
  using namespace checkpoint;
  if (is_checkpoint(folder)) return folder;
  std::string name = read_latest(folder);
  for (int look = 0; !name.empty(); ++look) {
    if (is_checkpoint(folder / name)) return folder / name;
    const std::string again = read_latest(folder);
    if (again == name || look == kLooks) refuse_latest(folder, name);
    name = again;
  }
  const std::vector<fs::path> all = checkpoints_in(folder);
  if (all.empty()) return std::nullopt;
  return all.back();
}

std::optional<fs::path> checkpoint_before(const fs::path& path) {
  using namespace checkpoint;
  std::vector<fs::path> earlier = seen_checkpoints_in(path.parent_path());
  std::erase_if(earlier, [own = step_of(path.filename().string())](const fs::path& other) {
    return step_of(other.filename().string()) >= own;
  });
  if (earlier.empty()) return std::nullopt;
  return earlier.back();
}

std::optional<fs::path> latest_checkpoint(const fs::path& folder, Communicator world) {
  using namespace checkpoint;
  if (!world) return latest_checkpoint(folder);
  const bool first = world.rank() == 0;
  // By its name in the folder, which a rank may reach by another path; none where it is the folder itself.
  struct Found {
    std::int32_t any = 0;
    char name[28] = {};
  } found;
  together(world, "newest checkpoint", [&] {
    const auto path = first ? latest_checkpoint(folder) : std::nullopt;
    found.any = path ? 1 : 0;
    if (path && *path != folder) path->filename().string().copy(found.name, sizeof found.name - 1);
  });
  world.broadcast(&found, sizeof found, 0, {.operation = "newest checkpoint"});
  if (found.any == 0) return std::nullopt;
  const fs::path path = found.name[0] == '\0' ? folder : folder / found.name;
  together(world, "newest checkpoint seen", [&] {
    if (!first && !is_checkpoint(path))
      throw EnvironmentError(
          fmt::format("rank {} finds no checkpoint at '{}', where rank 0 finds one; all "
                      "ranks must see the same folder",
                      world.rank(), path.string()));
  });
  return path;
}

}  // namespace tessera
