// libnccl, loaded when it is first asked for: a program that exchanges nothing between GPUs starts without
// it.
#pragma once

#include <nccl.h>

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

// EnvironmentError naming the file where it cannot be loaded. It stays for good.
const Nccl& nccl();

}  // namespace tessera::comm
