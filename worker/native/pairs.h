// bfloat16 in pairs, as the instructions of AVX-512 and of tiles multiply it: a unit of 32 bits holds two neighbours of the dimension that is
// summed over. For files that ask whether the processor has them before they call.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstdint>

#define PPO_PAIRS __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))

namespace ppo::training {

typedef uint16_t Halves __attribute__((vector_size(32)));
typedef uint32_t Units __attribute__((vector_size(64)));

// Of 16 lanes those up to `count`, which may be negative or more.
PPO_PAIRS static inline __mmask16 first(int64_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xffff : count <= 0 ? 0 : (1 << count) - 1);
}

PPO_PAIRS static inline Units units_of(__m256i halves) { return __builtin_convertvector((Halves)halves, Units); }
PPO_PAIRS static inline __m512i pairs_of(__m256i even, __m256i odd) { return (__m512i)(units_of(even) | units_of(odd) << 16); }
PPO_PAIRS static inline __m512 widened(__m256i halves) { return (__m512)(units_of(halves) << 16); }
PPO_PAIRS static inline __m256i rounded(__m512 x) { return (__m256i)_mm512_cvtneps_pbh(x); }

}  // namespace ppo::training
#endif
