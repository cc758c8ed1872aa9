// The names of files and folders in a checkpoint folder, and which checkpoint is the newest.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::checkpoint {

inline constexpr const char* kLatest = "latest";

std::string step_name(std::int64_t step);  // "step-00000100"
std::string file_name(int rank);           // "rank-00000.tessera"

// Whether `path` is one checkpoint's own folder. Throws EnvironmentError if it cannot be read.
bool is_checkpoint(const std::filesystem::path& path);

// The complete checkpoints, ascending by step. Throws EnvironmentError if the folder or one of them cannot be
// read.
std::vector<std::filesystem::path> checkpoints_in(const std::filesystem::path& folder);

// The same without checkpoints that cannot be read.
std::vector<std::filesystem::path> seen_checkpoints_in(const std::filesystem::path& folder);

// The path that `latest` names, whether or not it exists; empty if it names nothing.
std::filesystem::path seen_latest(const std::filesystem::path& folder);

// latest_checkpoint() of `path`. Throws UsageError if there is none.
std::filesystem::path resolve(const std::filesystem::path& path);

// Removes what an interrupted save or removal left behind. If something could not be removed, returns why,
// for the first; see remove_folder().
std::string remove_temporaries(const std::filesystem::path& folder);
// Removes all but the newest `keep` checkpoints. `kept` counts as the newest. `before` is the one that
// `latest` named until then, and counts as the next; empty if there was none. Other checkpoints of later
// steps than the earlier of these two count as the oldest, because the run went back to an earlier step. If
// one could not be removed, returns why, for the first; see remove_folder().
std::string prune(const std::filesystem::path& folder, int keep, const std::filesystem::path& kept,
                  const std::filesystem::path& before);

}  // namespace tessera::checkpoint
