// What this machine has and what this process uses of it: cores, memory, GPUs, and the libraries that are
// loaded on first use. Allocates nothing for a run and starts no threads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

// Keeps the calling thread on the given cores and names it. With no cores given, the thread may still use all
// that it could before. Throws EnvironmentError naming the cores if the system refuses.
void bind_thread(const std::vector<int>& cpus, const std::string& name);

// The cores that the calling thread may use, ascending.
std::vector<int> allowed_cores();
// Part `index` of the cores cut into `parts` contiguous parts, whose sizes differ by at most one. Empty if
// there are fewer cores than parts.
std::vector<int> share_of_cores(const std::vector<int>& cores, int index, int parts);

// This process's memory as the operating system reports it.
struct ProcessMemory {
  std::int64_t resident_bytes = 0;       // VmRSS
  std::int64_t peak_resident_bytes = 0;  // VmHWM, since the start or the last reset
};
ProcessMemory read_process_memory();
// Pss: resident bytes, where memory that n processes map counts 1/n in each. The system walks all pages for
// it: milliseconds for a gigabyte of small pages. 0 if the system does not report it.
std::int64_t read_proportional_bytes();
// Sets the peak to what is resident now. Returns false if the system does not allow it.
bool reset_peak_memory();

// What this machine offers this process.
struct Machine {
  std::string cpu;                   // the model's name
  std::string instruction_set;       // the widest that kernels use: "AVX-512 BF16, AMX"
  int cores = 1;                     // that this process may run on
  std::int64_t memory_bytes = 0;     // installed
  std::int64_t available_bytes = 0;  // that this process could take without swapping, within its cgroup
  bool huge_pages = false;           // transparent huge pages may be asked for
};
Machine read_machine();
int read_cores();         // only the `cores` of read_machine()
std::string host_name();  // the system's name for this machine

// One GPU of this machine.
struct CudaGpu {
  std::string name;
  std::string bus_id;  // its address on the host's PCI bus, "0000:1b:00.0"; the same for every process
  std::int64_t memory_bytes = 0;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  double bytes_per_second = 0;  // peak rate of its memory, from clock and width; 0 if the driver does not say
};

// The CUDA parts of this build and this machine. A version is empty if its part is absent.
struct CudaMachine {
  std::string cuda, nccl, cudnn;  // versions that this build was made with
  std::string driver;             // the newest CUDA version that the installed driver supports
  std::string unusable;           // why no GPU can be used; empty where one can
  std::vector<CudaGpu> gpus;
};
CudaMachine read_cuda_machine();  // never throws for a missing driver or GPU

// The bytes of a GPU's memory that all processes use, as the driver counts them, contexts and loaded kernels
// included. Makes this process's context on the GPU. Throws as make_cuda_device() does.
std::int64_t read_gpu_used_bytes(int ordinal);

// Whether streams of this GPU wait by themselves for threads of the host, which is tried on the GPU. If not,
// the thread that enqueues waits in their place. Makes this process's context on the GPU. Throws as
// make_cuda_device() does.
struct StreamWaits {
  std::string why_not;  // empty where they do
};
StreamWaits read_stream_waits(int ordinal);

// cuDNN, which computes attention in bf16 on a GPU if the build has it. Reading it loads the library.
struct CudnnLibrary {
  std::string version;   // of the loaded library; empty if none was loaded
  std::string unusable;  // why none was loaded; empty if one was
};
CudnnLibrary read_cudnn_library();  // never throws for a missing library

// Whether io_uring can be used. If not, threads read and write the files of states on the disk.
struct UringMachine {
  bool built = false;    // this build contains it
  std::string unusable;  // why it cannot be used; empty where it can
};
UringMachine read_uring_machine();  // never throws for a refusal

}  // namespace tessera
