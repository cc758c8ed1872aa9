// What this machine has and what this process takes of it: cores, memory, GPUs, and the libraries that are
// loaded when used. Takes no memory and starts nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

// Keeps the calling thread on the given cores (all it may use where empty: no change) and names it.
// EnvironmentError naming the cores where the system refuses.
void bind_thread(const std::vector<int>& cpus, const std::string& name);

// The cores that the calling thread may use, ascending.
std::vector<int> allowed_cores();
// Part `index` of `parts` of the cores, side by side and of equal numbers but for one; empty where there are
// fewer cores than parts.
std::vector<int> share_of_cores(const std::vector<int>& cores, int index, int parts);

// What the operating system says of this process, in bytes.
struct ProcessMemory {
  std::int64_t resident_bytes = 0;       // VmRSS
  std::int64_t peak_resident_bytes = 0;  // VmHWM, since the start or the last reset
};
ProcessMemory read_process_memory();
// Pss: like the resident bytes, but memory that several processes map counts in parts, one for each. Walks
// all of them: milliseconds for a gigabyte of small pages. 0 where the system does not say.
std::int64_t read_proportional_bytes();
// Sets the peak to what is resident now; false where the system does not allow it.
bool reset_peak_memory();

// What this machine offers this process.
struct Machine {
  std::string cpu;                   // the model's name
  std::string instruction_set;       // the processor's widest that matters: "AVX-512 BF16, AMX", say
  int cores = 1;                     // this process may run on
  std::int64_t memory_bytes = 0;     // installed
  std::int64_t available_bytes = 0;  // that this process could take without swapping, within its cgroup (v2)
  bool huge_pages = false;           // transparent huge pages may be asked for
};
Machine read_machine();
int read_cores();         // the `cores` of read_machine() alone
std::string host_name();  // by which the system calls this machine

// One GPU of this machine.
struct CudaGpu {
  std::string name;
  std::string bus_id;  // its place on the host's PCI bus, "0000:1b:00.0", by whichever ordinal it is seen
  std::int64_t memory_bytes = 0;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  double bytes_per_second = 0;  // of its memory, by clock and width; 0 where the driver does not say
};

// What this build and this machine have of CUDA. Versions are empty where a part is absent.
struct CudaMachine {
  std::string cuda, nccl, cudnn;  // that this build was made with
  std::string driver;             // the newest CUDA that the installed driver serves
  std::string unusable;           // why no GPU can be used; empty where one can
  std::vector<CudaGpu> gpus;
};
CudaMachine read_cuda_machine();  // never throws for a missing driver or GPU

// Bytes of a GPU's memory that are in use, by all processes, as its driver counts: with contexts, and the
// code of kernels that were loaded. Makes this process's context there. Throws as make_cuda_device().
std::int64_t read_gpu_used_bytes(int ordinal);

// What attention in bf16 on a GPU runs by, where the build has it. Loads it.
struct CudnnLibrary {
  std::string version;   // that was loaded; empty where none was
  std::string unusable;  // why none was
};
CudnnLibrary read_cudnn_library();  // never throws for a missing library

// What this build and this machine have of io_uring. Files of states are read and written by threads where it
// cannot be used.
struct UringMachine {
  bool built = false;    // this build contains it
  std::string unusable;  // why it cannot be used; empty where it can
};
UringMachine read_uring_machine();  // never throws for a refusal

}  // namespace tessera
