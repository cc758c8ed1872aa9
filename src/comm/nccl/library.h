// libnccl, loaded when it is first asked for: a program that exchanges nothing between GPUs starts without
// it.
#pragma once

#include <nccl.h>

#include <string>

namespace tessera::comm {

// clang-format off
#define TESSERA_FOR_EACH_NCCL(function) \
  function(ncclGetVersion) function(ncclGetErrorString) function(ncclGetLastError) \
  function(ncclGetUniqueId) function(ncclCommInitRankConfig) function(ncclCommGetAsyncError) \
  function(ncclCommSplit) function(ncclCommDestroy) function(ncclCommAbort) \
  function(ncclMemAlloc) function(ncclMemFree) function(ncclCommRegister) function(ncclCommDeregister) \
  function(ncclGroupStart) function(ncclGroupEnd) \
  function(ncclAllGather) function(ncclReduceScatter) function(ncclBroadcast) function(ncclSend) function(ncclRecv)
// clang-format on

struct Nccl {
#define TESSERA_NCCL_MEMBER(function) decltype(&::function) function;
  TESSERA_FOR_EACH_NCCL(TESSERA_NCCL_MEMBER)
#undef TESSERA_NCCL_MEMBER
};

// EnvironmentError naming the file where it cannot be loaded, is too old, or is told by the environment to do
// what the project's communicators cannot work with. It stays for good.
const Nccl& nccl();

// In needs.cpp, of nccl(). EnvironmentError where this version of `file` cannot be used.
void check_nccl_version(int version, const std::string& file);
// Before the library is loaded: that kernels start in one order. EnvironmentError where the environment says
// otherwise.
void ask_for_launch_order();
std::string nccl_version_text(int version);

}  // namespace tessera::comm
