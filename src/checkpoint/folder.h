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

// Complete checkpoints, ascending by step. EnvironmentError where the folder or one of them cannot be looked
// at.
std::vector<std::filesystem::path> checkpoints_in(const std::filesystem::path& folder);

// latest_checkpoint() of `path`; UsageError where there is none.
std::filesystem::path resolve(const std::filesystem::path& path);

// Removes what an interrupted save left behind.
void remove_temporaries(const std::filesystem::path& folder);
// Removes all but the newest `keep` checkpoints; never `kept`.
void prune(const std::filesystem::path& folder, int keep, const std::filesystem::path& kept);

}  // namespace tessera::checkpoint
