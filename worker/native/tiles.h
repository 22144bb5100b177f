// Tiles of a processor's matrix unit (AMX): eight of 16 lines of 64 bytes. In assembly, since compilers learnt them later than the other
// instructions, and do not know that their intrinsics read memory (GCC 12 leaves out what was to be stored before).
#pragma once
#include <cstdint>

#if defined(__x86_64__)
namespace ppo::tiles {

#define PPO_TILE static inline __attribute__((always_inline))

struct alignas(64) Configuration {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t line_bytes[16] = {};
  uint8_t lines[16] = {};
};

// Gives this thread its tiles, whole ones but for `upper` lines in those of kUpper and `lower` in those of kLower (bit masks), until `end`.
template <int kUpper = 0, int kLower = 0>
PPO_TILE void begin(int upper = 16, int lower = 16) {
  Configuration tiles;
  for (int tile = 0; tile < 8; tile++) {
    tiles.line_bytes[tile] = 64;
    tiles.lines[tile] = static_cast<uint8_t>(kUpper >> tile & 1 ? upper : kLower >> tile & 1 ? lower : 16);
  }
  asm volatile("ldtilecfg %0" ::"m"(tiles) : "memory");
}
PPO_TILE void end() { asm volatile("tilerelease" ::: "memory"); }

template <int kTile>
PPO_TILE void zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
// Lines lie `stride` bytes apart.
template <int kTile>
PPO_TILE void load(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
PPO_TILE void store(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kTile) : "memory");
}
// sums [i, j] += left [i, k] right [k, j], of pairs of bfloat16
template <int kSums, int kLeft, int kRight>
PPO_TILE void multiply() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kLeft), "i"(kRight));
}
// Four sums at a time, of two left tiles and two right ones: 0 to 3, of 4 and 5, and of 6 and 7.
PPO_TILE void multiply_square() { multiply<0, 4, 6>(), multiply<1, 4, 7>(), multiply<2, 5, 6>(), multiply<3, 5, 7>(); }

}  // namespace ppo::tiles
#endif
