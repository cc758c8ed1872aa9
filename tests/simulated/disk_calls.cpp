// The file calls of this program, before those of the C library: each is a point of the simulated world, does
// what it is to do, and tells the disk that the path lies on, if any does. Only what the checkpoint's sources
// and std::filesystem call.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <string>

#include "src/device/simulator.h"
#include "tests/simulated/disk.h"

namespace {

using tessera::simulated::Disk;

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

// Where an open file lies; one that was removed has no place.
std::string path_of(int file) {
  std::array<char, PATH_MAX> path{};
  const ssize_t bytes =
      ::readlink(("/proc/self/fd/" + std::to_string(file)).c_str(), path.data(), path.size() - 1);
  return bytes > 0 ? std::string(path.data(), static_cast<std::size_t>(bytes)) : "";
}

std::string path_at(int folder, const char* path) {
  return path[0] == '/' || folder == AT_FDCWD ? path : path_of(folder) + "/" + path;
}

// The disk that has the path; null where none has.
Disk* disk_of(const std::string& path) {
  Disk* const disk = Disk::current();
  return disk != nullptr && disk->holds(path) ? disk : nullptr;
}

// A point: other threads may go on, or this one may be killed. Whether the call is to be done behind it.
bool may(Disk* disk) {
  if (disk == nullptr) return true;
  if (auto* const simulated = tessera::device::simulator()) simulated->yield();
  if (!disk->is_cut_off()) return true;
  errno = EIO;
  return false;
}
bool may_take_room(Disk* disk) {
  if (!may(disk)) return false;
  if (disk == nullptr || disk->has_room()) return true;
  errno = ENOSPC;
  return false;
}

template <class Open>
int open_at(const std::string& path, int flags, const Open& open) {
  Disk* const disk = disk_of(path);
  if (disk == nullptr || (flags & O_CREAT) == 0) return open();
  if (!may_take_room(disk)) return -1;
  const int file = open();
  if (file >= 0) disk->made_file(path);
  return file;
}

mode_t mode_of(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  static auto* const call = next<int(const char*, int, ...)>("open");
  return open_at(path, flags, [&] { return call(path, flags, mode); });
}

int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  static auto* const call = next<int(const char*, int, ...)>("open64");
  return open_at(path, flags, [&] { return call(path, flags, mode); });
}

// A write may end in the middle: the second half is a call of its own.
ssize_t pwrite(int file, const void* data, size_t bytes, off_t offset) {
  static auto* const call = next<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  const std::string path = path_of(file);
  Disk* const disk = disk_of(path);
  if (disk == nullptr) return call(file, data, bytes, offset);
  if (!may_take_room(disk)) return -1;
  const ssize_t done = call(file, data, bytes > 1 ? bytes / 2 : bytes, offset);
  if (done > 0) disk->wrote(path, offset, data, static_cast<std::size_t>(done));
  return done;
}
ssize_t pwrite64(int file, const void* data, size_t bytes, off_t offset) {
  return pwrite(file, data, bytes, offset);
}

int fallocate(int file, int mode, off_t offset, off_t bytes) {
  static auto* const call = next<int(int, int, off_t, off_t)>("fallocate");
  const std::string path = path_of(file);
  Disk* const disk = disk_of(path);
  if (!may_take_room(disk)) return -1;
  const int result = call(file, mode, offset, bytes);
  if (disk != nullptr && result == 0) disk->resized(path, offset + bytes);
  return result;
}

int ftruncate(int file, off_t bytes) {
  static auto* const call = next<int(int, off_t)>("ftruncate");
  const std::string path = path_of(file);
  Disk* const disk = disk_of(path);
  if (!may(disk)) return -1;
  const int result = call(file, bytes);
  if (disk != nullptr && result == 0) disk->resized(path, bytes);
  return result;
}

// The disk's own syncs cost nothing: the folder lies in memory.
int fsync(int file) {
  static auto* const call = next<int(int)>("fsync");
  const std::string path = path_of(file);
  Disk* const disk = disk_of(path);
  if (disk == nullptr) return call(file);
  if (!may(disk)) return -1;
  disk->synced(path);
  return 0;
}

int mkdir(const char* path, mode_t mode) {
  static auto* const call = next<int(const char*, mode_t)>("mkdir");
  Disk* const disk = disk_of(path);
  if (!may_take_room(disk)) return -1;
  const int result = call(path, mode);
  if (disk != nullptr && result == 0) disk->made_folder(path);
  return result;
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  static auto* const call = next<int(int, const char*, int, const char*, unsigned)>("renameat2");
  const std::string from_path = path_at(from_folder, from), to_path = path_at(to_folder, to);
  Disk* const disk = disk_of(to_path);
  if (!may(disk)) return -1;
  const int result = call(from_folder, from, to_folder, to, flags);
  if (disk != nullptr && result == 0) disk->renamed(from_path, to_path, (flags & RENAME_EXCHANGE) != 0);
  return result;
}

int rename(const char* from, const char* to) {
  static auto* const call = next<int(const char*, const char*)>("rename");
  Disk* const disk = disk_of(to);
  if (!may(disk)) return -1;
  const int result = call(from, to);
  if (disk != nullptr && result == 0) disk->renamed(from, to, false);
  return result;
}

int unlinkat(int folder, const char* path, int flags) {
  static auto* const call = next<int(int, const char*, int)>("unlinkat");
  const std::string whole = path_at(folder, path);
  Disk* const disk = disk_of(whole);
  if (!may(disk)) return -1;
  const int result = call(folder, path, flags);
  if (disk != nullptr && result == 0) disk->removed(whole);
  return result;
}

int unlink(const char* path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char* path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char* path) {
  const int result = unlinkat(AT_FDCWD, path, 0);
  return result != 0 && (errno == EISDIR || errno == EPERM) ? unlinkat(AT_FDCWD, path, AT_REMOVEDIR) : result;
}

}  // extern "C"
