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

// latest_checkpoint() of `path`; UsageError where there is none.
std::filesystem::path resolve(const std::filesystem::path& path);

// Removes what an interrupted save left behind.
void remove_temporaries(const std::filesystem::path& folder);
// Removes all but the newest `keep` checkpoints, of which `kept` is the newest and those of later steps are
// the oldest: a run that went back does not come to them.
void prune(const std::filesystem::path& folder, int keep, const std::filesystem::path& kept);

}  // namespace tessera::checkpoint
