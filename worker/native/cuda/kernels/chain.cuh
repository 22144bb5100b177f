// Kernels that follow each other, each on what the one before made: where they are launched to overlap, the next may take its place on the
// device while this one computes. https://docs.nvidia.com/cuda/cuda-c-programming-guide/#programmatic-dependent-launch-and-synchronization
#pragma once

namespace ppo::cuda {

// The next kernel may begin, up to where it waits. Blocks that have not begun go first.
__device__ inline void let_next_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// What the kernels before wrote is there. Every thread of every kernel waits: who knows that this one has ended knows it of those before.
__device__ inline void wait_for_input() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Where a kernel begins that has nothing to do before its input is there.
__device__ inline void begin() {
  let_next_begin();
  wait_for_input();
}

}  // namespace ppo::cuda
