// Copies from the GPU's memory to a block's shared memory that go on while their thread does other things.
// What they bring is there for the thread that waited for them; for others of its block behind a barrier,
// too.
#pragma once

namespace tessera::kernels::cuda {

// 16 bytes; both lie at a multiple of as many. Until the copy was waited for, nothing may be said of
// `shared`.
__device__ inline void copy_async(void* shared, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(shared))),
               "l"(from)
               : "memory");
}

// What the thread asked for since the last call is a group of copies, which may be empty.
__device__ inline void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until of the thread's groups only the newest kOpen may be on their way.
template <int kOpen>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kOpen) : "memory");
}

}  // namespace tessera::kernels::cuda
