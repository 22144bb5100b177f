// What a thread asked of a simulated GPU while it captured, to be asked again as often as the graph is replayed.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace simulated {

struct Recording {
  std::vector<std::function<void()>> steps;
  // What the steps answered, in memory of their own.
  std::vector<at::Tensor> made;
};

// The calling thread's, or null.
Recording*& recording();

// For what waits for the device, and so cannot be captured.
void refuse_in_capture(const std::string& what);

}  // namespace simulated
