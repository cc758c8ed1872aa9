#include "src/launch/processes.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <string_view>
#include <system_error>

namespace tessera::launching {
namespace {

namespace fs = std::filesystem;

// Reads by the system's calls: a stream throws where a process goes while its file is read.
std::string content(const fs::path& file) {
  const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return {};
  std::string text;
  std::array<char, 4096> buffer{};
  for (;;) {
    const ssize_t bytes = ::read(descriptor, buffer.data(), buffer.size());
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(bytes));
  }
  ::close(descriptor);
  return text;
}

struct Stat {
  char state = '?';
  pid_t parent = -1;
};

// "4242 (name, which may have spaces and brackets) T 4000 …"; see proc(5).
Stat stat_of(const fs::path& process) {
  const std::string text = content(process / "stat");
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos || name_end + 4 >= text.size()) return {};
  Stat stat;
  stat.state = text[name_end + 2];
  std::from_chars(text.data() + name_end + 4, text.data() + text.size(), stat.parent);
  return stat;
}

template <class Wanted>
std::vector<pid_t> processes_where(const Wanted& wanted) {
  std::vector<pid_t> found;
  std::error_code gone;
  for (fs::directory_iterator entry("/proc", gone), end; !gone && entry != end; entry.increment(gone)) {
    const std::string name = entry->path().filename().string();
    pid_t process = 0;
    const auto [rest, error] = std::from_chars(name.data(), name.data() + name.size(), process);
    if (error == std::errc() && rest == name.data() + name.size() && wanted(entry->path()))
      found.push_back(process);
  }
  return found;
}

}  // namespace

bool is_stopped(pid_t process) { return stat_of(fs::path("/proc") / std::to_string(process)).state == 'T'; }

std::vector<pid_t> children() {
  const pid_t self = ::getpid();
  return processes_where([self](const fs::path& process) { return stat_of(process).parent == self; });
}

std::vector<pid_t> processes_with(const std::vector<std::string>& variables) {
  return processes_where([&](const fs::path& process) {
    const std::string environment = '\0' + content(process / "environ") + '\0';
    return std::ranges::all_of(variables, [&](const std::string& variable) {
      return environment.find('\0' + variable + '\0') != std::string::npos;
    });
  });
}

}  // namespace tessera::launching
