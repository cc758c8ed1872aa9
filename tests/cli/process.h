// A program as its user runs it: a process, its exit status, and what it printed, which goes to files.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace tessera::testing {

using Arguments = std::vector<std::string>;

inline std::string read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

struct Result {
  int status = -1;  // exit status; −signal where it was ended by one
  std::string out, err;
};

// The files that its output goes to.
struct Outputs {
  std::string out, err;
};

inline pid_t start_process(Arguments program, const Outputs& outputs, rlim_t file_limit = RLIM_INFINITY) {
  std::vector<char*> pointers;
  for (std::string& one : program) pointers.push_back(one.data());
  pointers.push_back(nullptr);
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::dup2(::open(outputs.out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), STDOUT_FILENO);
  ::dup2(::open(outputs.err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), STDERR_FILENO);
  const rlimit limit{file_limit, file_limit};
  if (file_limit != RLIM_INFINITY) ::setrlimit(RLIMIT_FSIZE, &limit);
  ::execv(pointers[0], pointers.data());
  ::_exit(127);
}

inline Result finish_process(pid_t child, const Outputs& outputs) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return {.status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status),
          .out = read(outputs.out),
          .err = read(outputs.err)};
}

}  // namespace tessera::testing
