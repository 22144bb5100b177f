// Where C++ meets Rust: no exception may cross.
#pragma once

#include <c10/util/Exception.h>

#include <cstring>
#include <exception>

namespace ppo {

// Runs the body; an exception becomes a message that the caller gives back to be freed.
template <typename Body>
char* guarded(Body body) {
  try {
    body();
    return nullptr;
  } catch (const c10::Error& error) {
    return strdup(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return strdup(error.what());
  } catch (...) {
    return strdup("unknown C++ exception");
  }
}

}  // namespace ppo
