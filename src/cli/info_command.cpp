// `tessera info`.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "src/cli/commands.h"
#include "src/cli/report.h"
#include "tessera/communicator.h"
#include "tessera/error.h"
#include "tessera/machine.h"

namespace tessera::cli {
namespace {

const char* or_none(const std::string& version) { return version.empty() ? "none" : version.c_str(); }

// What is tried on the GPU, which may be another process's alone.
std::string waits_of(int ordinal) try {
  return read_stream_waits(ordinal).why_not;
} catch (const Error& error) {
  return error.what();
}
std::string waits_text(const std::string& why_not) {
  return why_not.empty() ? "its streams wait by themselves for threads of the host"
                         : "threads of the host are waited for by the caller: " + why_not;
}

void print_cuda(const CudaMachine& cuda, const NcclLibrary& nccl, const CudnnLibrary& cudnn) {
  fmt::print("built with     CUDA {}, NCCL {}, cuDNN {}\n", or_none(cuda.cuda), or_none(cuda.nccl),
             or_none(cuda.cudnn));
  if (nccl.unusable.empty())
    fmt::print("NCCL           {}\n", nccl.version);
  else
    fmt::print("NCCL           none: {}\n", nccl.unusable);
  // Which kernels attention runs by is the build's choice: without the library it does not fall back.
  if (cudnn.unusable.empty())
    fmt::print(
        "cuDNN          {}: GPU attention in bf16, heads of 8, 16, ... 128 channels; else own kernels\n",
        cudnn.version);
  else
    fmt::print("cuDNN          none: {}{}\n", cudnn.unusable,
               cuda.cuda.empty() || !cuda.cudnn.empty() ? "" : "; GPU attention runs by own kernels");
  if (!cuda.driver.empty()) fmt::print("GPU driver     serves CUDA up to {}\n", cuda.driver);
  if (!cuda.unusable.empty()) fmt::print("GPUs           none: {}\n", cuda.unusable);
  for (std::size_t i = 0; i < cuda.gpus.size(); ++i) {
    const CudaGpu& gpu = cuda.gpus[i];
    fmt::print("{:<15}{} at {}, {}, compute capability {}.{}, {} multiprocessors", fmt::format("GPU {}", i),
               gpu.name, gpu.bus_id, mib(gpu.memory_bytes), gpu.major, gpu.minor, gpu.multiprocessors);
    if (gpu.bytes_per_second > 0) fmt::print(", {:.0f} GB/s", gpu.bytes_per_second / 1e9);
    fmt::print("\n{:<15}{}\n", "", waits_text(waits_of(static_cast<int>(i))));
  }
}

nlohmann::json to_json(const CudaMachine& cuda, const NcclLibrary& nccl, const CudnnLibrary& cudnn) {
  nlohmann::json gpus = nlohmann::json::array();
  for (const CudaGpu& gpu : cuda.gpus)
    gpus.push_back({{"name", gpu.name},
                    {"streams_wait_for_host", waits_of(static_cast<int>(gpus.size())).empty()},
                    {"bus_id", gpu.bus_id},
                    {"memory_bytes", gpu.memory_bytes},
                    {"compute_capability", fmt::format("{}.{}", gpu.major, gpu.minor)},
                    {"multiprocessors", gpu.multiprocessors},
                    {"bytes_per_second", gpu.bytes_per_second}});
  return {{"version", cuda.cuda},
          {"nccl", cuda.nccl},
          {"nccl_loaded", nccl.version},
          {"nccl_unusable", nccl.unusable},
          {"cudnn", cuda.cudnn},
          {"cudnn_loaded", cudnn.version},
          {"cudnn_unusable", cudnn.unusable},
          {"driver", cuda.driver},
          {"unusable", cuda.unusable},
          {"gpus", gpus}};
}

}  // namespace

int info_command(ResultFile& file) {
  file.open();
  const Machine machine = read_machine();
  fmt::print("tessera        {} ({}, {})\n", TESSERA_VERSION, TESSERA_BUILD, TESSERA_COMPILER);
  const CudaMachine cuda = read_cuda_machine();
  std::vector<std::string> devices = {"cpu"};
  if (cuda.unusable.empty()) devices.emplace_back("cuda");
  const NcclLibrary nccl = read_nccl_library();
  fmt::print("devices        {}\ncommunication  local (ranks are threads){}{}{}\n", fmt::join(devices, ", "),
             mpi_available() ? ", mpi (ranks are processes)" : "",
             !control_available()      ? ""
             : process_between_hosts() ? ", process (ranks are processes, without MPI)"
                                       : ", process (ranks are processes of one host, without MPI)",
             nccl.unusable.empty() ? ", nccl (between GPUs)" : "");
  std::vector<std::string> communication = {"local"};
  if (mpi_available()) communication.emplace_back("mpi");
  if (control_available()) communication.insert(communication.end(), {"process", "control"});
  if (nccl.unusable.empty()) communication.emplace_back("nccl");
  fmt::print("processor      {}\ninstructions   {}\ncores          {}\n", machine.cpu,
             machine.instruction_set, machine.cores);
  fmt::print("memory         {} installed, {} available\n", mib(machine.memory_bytes),
             mib(machine.available_bytes));
  fmt::print("huge pages     {}\n", machine.huge_pages ? "yes" : "no");
  const UringMachine uring = read_uring_machine();
  fmt::print("io_uring       {}\n", uring.unusable.empty() ? "yes" : "none: " + uring.unusable);
  const CudnnLibrary cudnn = read_cudnn_library();
  print_cuda(cuda, nccl, cudnn);
  file.write({{"version", TESSERA_VERSION},
              {"build", TESSERA_BUILD},
              {"compiler", TESSERA_COMPILER},
              {"devices", devices},
              {"communication", communication},
              {"processor", machine.cpu},
              {"instruction_set", machine.instruction_set},
              {"cores", machine.cores},
              {"memory_bytes", machine.memory_bytes},
              {"available_bytes", machine.available_bytes},
              {"huge_pages", machine.huge_pages},
              {"io_uring", {{"built", uring.built}, {"unusable", uring.unusable}}},
              {"cuda", to_json(cuda, nccl, cudnn)}});
  return 0;
}

}  // namespace tessera::cli
