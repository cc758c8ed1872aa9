// The names in a checkpoint folder, and which checkpoint is the newest.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::checkpoint {

inline constexpr const char* kLatest = "latest";

std::string step_name(std::int64_t step);  // "step-00000100"
std::string file_name(int rank);           // "rank-00000.tessera"

// Whether it is one checkpoint's own folder. EnvironmentError where that cannot be told.
bool is_checkpoint(const std::filesystem::path& path);

// Complete checkpoints, ascending by step. EnvironmentError where the folder or one of them cannot be looked
// at.
std::vector<std::filesystem::path> checkpoints_in(const std::filesystem::path& folder);

// The same without those that cannot be looked at.
std::vector<std::filesystem::path> seen_checkpoints_in(const std::filesystem::path& folder);

// What `latest` names, there or not; empty where it names nothing.
std::filesystem::path seen_latest(const std::filesystem::path& folder);

// latest_checkpoint() of `path`; UsageError where there is none.
std::filesystem::path resolve(const std::filesystem::path& path);

// Removes what an interrupted save, or removal, left behind. Returns why the first of what stays stays, as
// remove_folder().
std::string remove_temporaries(const std::filesystem::path& folder);
// Removes all but the newest `keep` checkpoints, of which `kept` is the newest, and `before`, which `latest`
// named until then, the next; empty where there was none. Those of later steps than it are the oldest: a run
// that went back to it does not come to them. Returns why the first of those that stay stays, as
// remove_folder().
std::string prune(const std::filesystem::path& folder, int keep, const std::filesystem::path& kept,
                  const std::filesystem::path& before);

}  // namespace tessera::checkpoint
