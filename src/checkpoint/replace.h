// Folders that take each other's place, or go: whoever looks, or comes after a kill, finds whole ones.
#pragma once

#include <filesystem>
#include <string>

namespace tessera::checkpoint {

// renameat2(2); another one in tests.
using Rename = int (*)(int, const char*, int, const char*, unsigned);
Rename system_rename();

// Puts folder `from` in the place of `to`. In one step, but on a file system that cannot: there the old one
// first steps aside, under a name that restore_aside() knows. Returns where what stood there is now, under a
// temporary name, to be removed once the renames are on the disk; empty where nothing stood there.
// EnvironmentError with path and reason where it fails; what stood there then stands there.
std::filesystem::path replace_folder(const std::filesystem::path& from, const std::filesystem::path& to,
                                     Rename rename = system_rename());

// Where what stands at `path` steps aside to.
std::filesystem::path aside_of(const std::filesystem::path& path);

// Removes a folder that counts: at once in name, so that one half removed is a temporary. Returns why it
// could not, with the path; else nothing.
std::string remove_folder(const std::filesystem::path& path);
// The same of one whose name is temporary already.
std::string remove_temporary(const std::filesystem::path& path);

// Puts a folder that stepped aside back where nothing took its place. False where `path` is none of those.
bool restore_aside(const std::filesystem::path& path);

}  // namespace tessera::checkpoint
