// No exception leaves the decoder: it becomes a sentence.
#pragma once
#include <cstddef>
#include <cstdio>
#include <exception>
#include <new>

namespace decoder {

inline int report(char * error, size_t size, const char * what) {
    std::snprintf(error, size, "%s", what);
    return 1;
}

template <class Body> int guarded(char * error, size_t size, Body body) {
    try {
        body();
        return 0;
    } catch (const std::bad_alloc &) {
        return report(error, size, "not enough memory");
    } catch (const std::exception & e) {
        return report(error, size, e.what());
    }
}

} // namespace decoder
