// Work that a stream does by itself, beside the host: what NCCL is asked for. All else is done at once.
#pragma once

#include <cstdint>
#include <functional>

#include "order.h"

namespace simulated {

// Work for the stream, done after all that it was given before.
void enqueue(StreamName stream, std::function<void()> work);
// How much the stream was given, and whether it has done so much of it.
uint64_t given(StreamName stream);
bool is_done(StreamName stream, uint64_t count);
// Returns when it has.
void wait_for(StreamName stream, uint64_t count);

}  // namespace simulated
