#include "tests/device/nvtx_injection.h"

#define NVTX_NO_IMPL  // the declarations alone: this is the other side
#include <nvtx3/nvToolsExt.h>

#include <deque>
#include <mutex>

namespace tessera::nvtx_injection {
namespace {

std::mutex mutex;
Seen all;
std::deque<std::string> names;  // stay where they are: their addresses are the handles

nvtxDomainHandle_t NVTX_API create_domain(const char* name) {
  const std::lock_guard lock(mutex);
  all.domains.emplace_back(name);
  return reinterpret_cast<nvtxDomainHandle_t>(&names);
}

nvtxStringHandle_t NVTX_API register_string(nvtxDomainHandle_t, const char* text) {
  const std::lock_guard lock(mutex);
  return reinterpret_cast<nvtxStringHandle_t>(&names.emplace_back(text));
}

int NVTX_API push(nvtxDomainHandle_t, const nvtxEventAttributes_t* range) {
  const std::lock_guard lock(mutex);
  all.pushed.push_back(range->messageType == NVTX_MESSAGE_TYPE_REGISTERED
                           ? *reinterpret_cast<const std::string*>(range->message.registered)
                           : "not registered");
  return all.open++;
}

int NVTX_API pop(nvtxDomainHandle_t) {
  const std::lock_guard lock(mutex);
  return --all.open;
}

template <class Function>
void put(NvtxFunctionTable table, NvtxCallbackIdCore2 place, Function function) {
  *table[place] = reinterpret_cast<NvtxFunctionPointer>(function);
}

int NVTX_API inject(NvtxGetExportTableFunc_t tables) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(tables(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned places = 0;
  if (callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &places) == 0) return 0;
  put(table, NVTX_CBID_CORE2_DomainCreateA, &create_domain);
  put(table, NVTX_CBID_CORE2_DomainRegisterStringA, &register_string);
  put(table, NVTX_CBID_CORE2_DomainRangePushEx, &push);
  put(table, NVTX_CBID_CORE2_DomainRangePop, &pop);
  return 1;
}

}  // namespace

Seen seen() {
  const std::lock_guard lock(mutex);
  return all;
}

}  // namespace tessera::nvtx_injection

// NVTX looks for it by this name.
extern "C" {
NvtxInitializeInjectionNvtxFunc_t InitializeInjectionNvtx2_fnptr = tessera::nvtx_injection::inject;
}
