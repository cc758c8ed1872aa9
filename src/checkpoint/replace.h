// Replaces and removes folders so that a reader, also after a kill, finds only whole ones.
#pragma once

#include <filesystem>
#include <string>

namespace tessera::checkpoint {

// renameat2(2). Tests pass another function.
using Rename = int (*)(int, const char*, int, const char*, unsigned);
Rename system_rename();

// Puts folder `from` in the place of `to`, in one step. On a file system that cannot do that, the old folder
// is first moved aside, to a name that restore_aside() knows. Returns the temporary path at which the old
// folder is now, to be removed once the renames are on the disk; empty if there was none. Throws
// EnvironmentError with path and reason if it fails; the old folder is then in its place.
std::filesystem::path replace_folder(const std::filesystem::path& from, const std::filesystem::path& to,
                                     Rename rename = system_rename());

// The path to which the folder at `path` is moved aside.
std::filesystem::path aside_of(const std::filesystem::path& path);

// Removes a checkpoint's folder. Renames it first, so that a folder that is half removed has a temporary
// name. Returns "", or why it could not be removed, with the path.
std::string remove_folder(const std::filesystem::path& path);
// The same for a folder that already has a temporary name.
std::string remove_temporary(const std::filesystem::path& path);

// Moves a folder that was moved aside back to its place. Returns whether it did: false if `path` is not such
// a folder, or if another has taken its place.
bool restore_aside(const std::filesystem::path& path);

}  // namespace tessera::checkpoint
