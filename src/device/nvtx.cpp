#include <nvtx3/nvToolsExt.h>

#include "src/device/ranges.h"

namespace tessera::device {
namespace {

// Null where no profiler is attached.
nvtxDomainHandle_t domain() {
  static const nvtxDomainHandle_t made = nvtxDomainCreateA("tessera");
  return made;
}

}  // namespace

bool profiled() { return domain() != nullptr; }

const void* range_name(const std::string& text) {
  return profiled() ? nvtxDomainRegisterStringA(domain(), text.c_str()) : nullptr;
}

void Range::push(const void* name) {
  nvtxEventAttributes_t range{};
  range.version = NVTX_VERSION;
  range.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  range.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
  range.message.registered = static_cast<nvtxStringHandle_t>(const_cast<void*>(name));
  nvtxDomainRangePushEx(domain(), &range);
}

void Range::pop() { nvtxDomainRangePop(domain()); }

}  // namespace tessera::device
