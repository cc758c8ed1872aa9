// Lets the kernel refuse one system call, as another system or another kernel would: to the calling thread
// and to those that it starts.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <stdexcept>

namespace tessera {

struct Refusal {
  long call = -1;    // SYS_…; -1: none
  int argument = 0;  // of the call: only where it has all of `bits`
  std::uint32_t bits = 0;
  int error = 0;  // errno
};

inline void refuse_call(const Refusal& refusal) {
  const auto argument = static_cast<std::uint32_t>(offsetof(seccomp_data, args) + 8 * refusal.argument);
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(refusal.call), 0, 4),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, argument),  // its lower half, on a little-endian machine
      BPF_STMT(BPF_ALU | BPF_AND | BPF_K, refusal.bits),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, refusal.bits, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(refusal.error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{.len = static_cast<unsigned short>(std::size(filter)), .filter = filter};
  if (refusal.call >= 0 && (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
                            prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0))
    throw std::runtime_error("this system has no seccomp filters");
}

}  // namespace tessera
