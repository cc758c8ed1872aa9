// Folders that take each other's place, or go: whoever looks, or comes after a kill, finds whole ones.
#pragma once

#include <filesystem>

namespace tessera::checkpoint {

// renameat2(2); another one in tests.
using Rename = int (*)(int, const char*, int, const char*, unsigned);
Rename system_rename();

// Puts folder `from` in the place of `to`, and removes what stood there. In one step, but on a file system
// that cannot: there the old one first steps aside, under a name that restore_aside() knows. EnvironmentError
// with path and reason where it fails; what stood there then stands there.
void replace_folder(const std::filesystem::path& from, const std::filesystem::path& to,
                    Rename rename = system_rename());

// Where what stands at `path` steps aside to.
std::filesystem::path aside_of(const std::filesystem::path& path);

// Removes a folder that counts: at once in name, so that one half removed is a temporary.
void remove_folder(const std::filesystem::path& path);

// Puts a folder that stepped aside back where nothing took its place. False where `path` is none of those.
bool restore_aside(const std::filesystem::path& path);

}  // namespace tessera::checkpoint
