// A driver without a GPU, under the real one's name: takes compiled kernels, refuses all else. With it cuDNN
// plans for a GPU that is described to it, and says what memory the plan needs.
namespace {

constexpr int kSuccess = 0, kNoDevice = 100;

int take(void** made) {
  *made = &made;  // any address: nothing ever runs
  return kSuccess;
}

}  // namespace

extern "C" {
// clang-format off
#define TESSERA_REFUSES(name) int name() { return kNoDevice; }
#define TESSERA_ACCEPTS(name) int name() { return kSuccess; }
#define TESSERA_MAKES(name) int name(void** made) { return take(made); }
TESSERA_REFUSES(cuInit) TESSERA_REFUSES(cuCtxGetCurrent) TESSERA_REFUSES(cuCtxGetDevice) TESSERA_REFUSES(cuCtxGetLimit)
TESSERA_REFUSES(cuCtxPopCurrent) TESSERA_REFUSES(cuCtxPushCurrent) TESSERA_REFUSES(cuDeviceGet)
TESSERA_REFUSES(cuDeviceGetAttribute) TESSERA_REFUSES(cuDeviceGetCount) TESSERA_REFUSES(cuDevicePrimaryCtxRelease)
TESSERA_REFUSES(cuDevicePrimaryCtxReset) TESSERA_REFUSES(cuDevicePrimaryCtxRetain) TESSERA_REFUSES(cuLaunchKernel)
TESSERA_REFUSES(cuLaunchCooperativeKernel) TESSERA_REFUSES(cuLaunchKernelEx) TESSERA_REFUSES(cuLibraryLoadFromFile)
TESSERA_REFUSES(cuLinkAddData) TESSERA_REFUSES(cuLinkAddData_v2) TESSERA_REFUSES(cuLinkAddFile_v2)
TESSERA_REFUSES(cuLinkComplete) TESSERA_REFUSES(cuLinkCreate) TESSERA_REFUSES(cuLinkCreate_v2)
TESSERA_REFUSES(cuLinkDestroy) TESSERA_REFUSES(cuMemcpyDtoH_v2) TESSERA_REFUSES(cuModuleGetGlobal_v2)
TESSERA_REFUSES(cuModuleLoadFatBinary) TESSERA_REFUSES(cuStreamGetCtx) TESSERA_REFUSES(cuStreamSynchronize)
TESSERA_REFUSES(cuTensorMapEncodeTiled) TESSERA_REFUSES(cuGetErrorName) TESSERA_REFUSES(cuGetErrorString)
TESSERA_ACCEPTS(cuLibraryUnload) TESSERA_ACCEPTS(cuModuleUnload) TESSERA_ACCEPTS(cuFuncGetAttribute)
TESSERA_ACCEPTS(cuFuncSetAttribute) TESSERA_ACCEPTS(cuKernelGetAttribute) TESSERA_ACCEPTS(cuKernelSetAttribute)
TESSERA_ACCEPTS(cuOccupancyMaxActiveBlocksPerMultiprocessor) TESSERA_ACCEPTS(cuOccupancyMaxPotentialClusterSize)
TESSERA_MAKES(cuLibraryLoadData) TESSERA_MAKES(cuLibraryGetKernel) TESSERA_MAKES(cuModuleGetFunction)
TESSERA_MAKES(cuModuleLoadData) TESSERA_MAKES(cuModuleLoadDataEx)
    // clang-format on
    int cuDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}
}
