// The threads of a block of a kernel, as fibers of one thread of the host: each has a stack of its own, and runs until it waits for others.
// Whom the turn comes to alternates, so that a kernel which relies on an order that nothing promises gives other numbers.
#undef _FORTIFY_SOURCE  // its longjmp takes another stack for a damaged one
#include "cuda.h"

#include <c10/util/Exception.h>
#include <setjmp.h>
#include <ucontext.h>

#include <memory>
#include <vector>

namespace simulated {

namespace {

constexpr size_t kStack = 128 << 10;
constexpr unsigned kWarp = 32, kMostThreads = 1024;
// CUDA's grids have at most so many blocks in y.
constexpr unsigned kMostAcross = 65535;

struct Meeting {
  unsigned expected = 0;
  unsigned come = 0;
  uint64_t held = 0;
};

struct Fiber {
  ucontext_t first;
  jmp_buf paused;
  std::unique_ptr<char[]> stack;
  bool done = true;
  // What it waits for, and which of these meetings.
  const Meeting* waits = nullptr;
  uint64_t meeting = 0;
  // How many numbers it has exchanged.
  uint64_t exchanged = 0;
};

struct Block {
  std::vector<std::unique_ptr<Fiber>> fibers;
  const std::function<void()>* kernel = nullptr;
  Fiber* current = nullptr;
  jmp_buf host;
  ucontext_t unused;
  Meeting all;
  Meeting warps[kMostThreads / kWarp];
  uint64_t numbers[kMostThreads / kWarp][2][kWarp];
};

thread_local Block* block = nullptr;

void pause() {
  if (_setjmp(block->current->paused) == 0) _longjmp(block->host, 1);
}

// A fiber computes one thread after another, for as long as the host's thread lives.
void live() {
  for (;;) {
    (*block->kernel)();
    block->current->done = true;
    pause();
  }
}

void resume(Fiber& fiber, unsigned thread) {
  block->current = &fiber;
  threadIdx = dim3(thread, 0, 0);
  if (_setjmp(block->host) != 0) return;
  if (fiber.stack != nullptr) _longjmp(fiber.paused, 1);
  fiber.stack.reset(new char[kStack]);
  getcontext(&fiber.first);
  fiber.first.uc_stack.ss_sp = fiber.stack.get();
  fiber.first.uc_stack.ss_size = kStack;
  makecontext(&fiber.first, live, 0);
  swapcontext(&block->unused, &fiber.first);
}

void meet(Meeting& meeting) {
  if (++meeting.come == meeting.expected) {
    meeting.come = 0;
    meeting.held++;
    return;
  }
  block->current->waits = &meeting;
  block->current->meeting = meeting.held;
  pause();
  block->current->waits = nullptr;
}

void compute_block(unsigned threads) {
  block->all = {threads, 0, 0};
  for (unsigned i = 0; i < threads / kWarp; i++) block->warps[i] = {kWarp, 0, 0};
  for (unsigned i = 0; i < threads; i++) {
    auto& fiber = *block->fibers[i];
    fiber.done = false;
    fiber.waits = nullptr;
    fiber.exchanged = 0;
  }
  unsigned left = threads;
  for (bool forward = true; left > 0; forward = !forward) {
    bool moved = false;
    for (unsigned i = 0; i < threads; i++) {
      const unsigned thread = forward ? i : threads - 1 - i;
      auto& fiber = *block->fibers[thread];
      if (fiber.done || (fiber.waits != nullptr && fiber.waits->held == fiber.meeting)) continue;
      moved = true;
      resume(fiber, thread);
      if (!fiber.done) continue;
      left--;
      block->all.expected--;  // who has ended is not waited for
      if (block->all.come > 0 && block->all.come == block->all.expected) block->all.come = 0, block->all.held++;
    }
    TORCH_CHECK(moved, "simulated GPU: the threads of a block wait for each other at different places");
  }
}

}  // namespace

void meet_block() { meet(block->all); }

void meet_warp() { meet(block->warps[threadIdx.x / kWarp]); }

uint64_t* exchange() { return block->numbers[threadIdx.x / kWarp][block->current->exchanged++ % 2]; }

void compute(dim3 grid, unsigned threads, const std::function<void()>& kernel) {
  TORCH_CHECK(threads > 0 && threads <= kMostThreads && threads % kWarp == 0, "simulated GPU: a block of ", threads, " threads");
  TORCH_CHECK(grid.x > 0 && grid.x <= INT32_MAX && grid.y > 0 && grid.y <= kMostAcross && grid.z == 1, "simulated GPU: a grid of ", grid.x, " x ", grid.y);
  // Of the host's thread, as the fibers of it; what a failure leaves behind is not used again.
  thread_local std::unique_ptr<Block> kept;
  auto own = kept == nullptr ? std::make_unique<Block>() : std::move(kept);
  while (own->fibers.size() < threads) own->fibers.push_back(std::make_unique<Fiber>());
  block = own.get();
  own->kernel = &kernel;
  blockDim = dim3(threads);
  gridDim = grid;
  for (unsigned y = 0; y < grid.y; y++) {
    for (unsigned x = 0; x < grid.x; x++) {
      blockIdx = dim3(x, y, 0);
      compute_block(threads);
    }
  }
  kept = std::move(own);
}

}  // namespace simulated
