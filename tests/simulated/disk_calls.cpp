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

// Does the call where it may be done. Where it succeeded, the disk that has the path is told.
template <class Call, class Tell>
int change(const std::string& path, bool (*may_do)(Disk*), const Call& call, const Tell& tell) {
  Disk* const disk = disk_of(path);
  if (!may_do(disk)) return -1;
  const int result = call();
  if (disk != nullptr && result >= 0) tell(*disk);
  return result;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  static auto* const call = next<int(const char*, int, ...)>("open");
  if ((flags & O_CREAT) == 0) return call(path, flags, mode);
  return change(
      path, may_take_room, [&] { return call(path, flags, mode); },
      [&](Disk& disk) { disk.made_file(path); });
}
int open64(const char* path, int flags, ...) __attribute__((alias("open")));

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
  return change(
      path, may_take_room, [&] { return call(file, mode, offset, bytes); },
      [&](Disk& disk) { disk.resized(path, offset + bytes); });
}

int ftruncate(int file, off_t bytes) {
  static auto* const call = next<int(int, off_t)>("ftruncate");
  const std::string path = path_of(file);
  return change(
      path, may, [&] { return call(file, bytes); }, [&](Disk& disk) { disk.resized(path, bytes); });
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
  return change(
      path, may_take_room, [&] { return call(path, mode); }, [&](Disk& disk) { disk.made_folder(path); });
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  static auto* const call = next<int(int, const char*, int, const char*, unsigned)>("renameat2");
  const std::string from_path = path_at(from_folder, from), to_path = path_at(to_folder, to);
  return change(
      to_path, may, [&] { return call(from_folder, from, to_folder, to, flags); },
      [&](Disk& disk) { disk.renamed(from_path, to_path, (flags & RENAME_EXCHANGE) != 0); });
}

int rename(const char* from, const char* to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }

int unlinkat(int folder, const char* path, int flags) {
  static auto* const call = next<int(int, const char*, int)>("unlinkat");
  const std::string whole = path_at(folder, path);
  return change(
      whole, may, [&] { return call(folder, path, flags); }, [&](Disk& disk) { disk.removed(whole); });
}

int unlink(const char* path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char* path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char* path) {
  const int result = unlinkat(AT_FDCWD, path, 0);
  return result != 0 && (errno == EISDIR || errno == EPERM) ? unlinkat(AT_FDCWD, path, AT_REMOVEDIR) : result;
}

}  // extern "C"
