// Float32 numbers in two halves of 16 bits: the bfloat16 that a number rounds to, and what rounding took away. Its bits are those of the
// bfloat16, shifted, plus the other half as a signed number; halves round away from zero.
#include "training.h"

#include <algorithm>

namespace ppo::training {

namespace {

PPO_CLONES void join_rows(const uint16_t* rounded, const int16_t* rest, uint32_t* whole, int64_t begin, int64_t end) {
#pragma omp simd
  for (int64_t i = begin; i < end; i++)
    whole[i] = (static_cast<uint32_t>(rounded[i]) << 16) + static_cast<uint32_t>(static_cast<int32_t>(rest[i]));
}

PPO_CLONES void split_rows(const uint32_t* whole, uint16_t* rounded, int16_t* rest, int64_t begin, int64_t end) {
#pragma omp simd
  for (int64_t i = begin; i < end; i++) {
    rounded[i] = static_cast<uint16_t>((whole[i] + 0x8000u) >> 16);
    rest[i] = static_cast<int16_t>(static_cast<uint16_t>(whole[i]));
  }
}

// Numbers of one byte of marks. The first and the last byte of a range may be shared with others.
constexpr int64_t kMarks = 8;

// Numbers whose marks are gathered in bytes first, which vectorises; a multiple of kMarks.
constexpr int64_t kBlock = 512;

// As split_rows; bit i % 8 of byte i / 8 of `marks` is set for every number `first` + i whose rounded half becomes another one.
PPO_CLONES void split_marked(
    const uint32_t* whole, uint16_t* rounded, int16_t* rest, uint8_t* marks, int64_t first, int64_t begin, int64_t end) {
  alignas(64) uint8_t changed[kBlock + kMarks];
  while (begin < end) {
    // A block ends where a byte of marks does.
    const int64_t before = (first + begin) % kMarks;
    const int64_t count = std::min(end - begin, kBlock - before);
    std::memset(changed, 0, kMarks);
    std::memset(changed + (before + count) / kMarks * kMarks, 0, kMarks);
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
      const uint16_t half = static_cast<uint16_t>((whole[begin + i] + 0x8000u) >> 16);
      changed[before + i] = half != rounded[begin + i];
      rounded[begin + i] = half;
      rest[begin + i] = static_cast<int16_t>(static_cast<uint16_t>(whole[begin + i]));
    }
    uint8_t* out = marks + (first + begin) / kMarks;
    for (int64_t byte = 0; byte * kMarks < before + count; byte++) {
      uint64_t flags;
      std::memcpy(&flags, changed + byte * kMarks, sizeof flags);
      // Eight bytes of 0 or 1 to eight bits: the product puts byte i's at bit 56 + i, and no two of its terms meet.
      out[byte] |= static_cast<uint8_t>(flags * 0x0102040810204080u >> 56);
    }
    begin += count;
  }
}

// Numbers a thread takes at a time.
constexpr int64_t kNumbers = 1 << 15;

void check(const Tensor& rounded, const Tensor& rest, const Tensor& whole) {
  TORCH_CHECK(rounded.scalar_type() == at::kBFloat16 && rest.scalar_type() == at::kShort && whole.scalar_type() == at::kFloat,
              "halves of float32 are bfloat16 and int16");
  TORCH_CHECK(rounded.numel() == whole.numel() && rest.numel() == whole.numel(), "halves of ", whole.numel(), " numbers are ",
              rounded.numel(), " and ", rest.numel());
  TORCH_CHECK(rounded.is_contiguous() && rest.is_contiguous() && whole.is_contiguous(), "halves of float32 lie in a row");
}

}  // namespace

static void join(const Tensor& rounded, const Tensor& rest, const Tensor& whole) {
  check(rounded, rest, whole);
  if (!has_kernels(whole)) return stock::join(rounded, rest, whole);
  at::parallel_for(0, whole.numel(), kNumbers, [&](int64_t begin, int64_t end) {
    join_rows(data<uint16_t>(rounded), data<int16_t>(rest), data<uint32_t>(whole), begin, end);
  });
}

static void split(const Tensor& whole, const Tensor& rounded, const Tensor& rest) {
  check(rounded, rest, whole);
  if (!has_kernels(whole)) return stock::split(whole, rounded, rest);
  at::parallel_for(0, whole.numel(), kNumbers, [&](int64_t begin, int64_t end) {
    split_rows(data<uint32_t>(whole), data<uint16_t>(rounded), data<int16_t>(rest), begin, end);
  });
}

static void split(const Tensor& whole, const Tensor& rounded, const Tensor& rest, const Tensor& marks, int64_t first) {
  check(rounded, rest, whole);
  TORCH_CHECK(marks.scalar_type() == at::kByte && marks.is_contiguous(), "marks are bits in bytes in a row");
  TORCH_CHECK(first >= 0 && marks.numel() * kMarks >= first + whole.numel(), marks.numel(), " bytes have no marks of ",
              whole.numel(), " numbers from ", first);
  if (!has_kernels(whole)) return stock::split(whole, rounded, rest, marks, first);
  // No two threads write to one byte: each takes whole ones.
  const int64_t from = first / kMarks, to = (first + whole.numel() + kMarks - 1) / kMarks;
  at::parallel_for(from, to, kNumbers / kMarks, [&](int64_t begin, int64_t end) {
    const int64_t start = std::max<int64_t>(begin * kMarks - first, 0);
    const int64_t stop = std::min(end * kMarks - first, whole.numel());
    split_marked(
        data<uint32_t>(whole), data<uint16_t>(rounded), data<int16_t>(rest), data<uint8_t>(marks), first, start, stop);
  });
}

}  // namespace ppo::training

extern "C" {

// Writes the numbers of both halves into `whole`.
char* ppo_master_join(const at::Tensor* rounded, const at::Tensor* rest, const at::Tensor* whole) {
  return ppo::guarded([&] {
    at::NoGradGuard no_grad;
    ppo::training::join(*rounded, *rest, *whole);
  });
}

// Writes `whole` into both halves.
char* ppo_master_split(const at::Tensor* whole, const at::Tensor* rounded, const at::Tensor* rest) {
  return ppo::guarded([&] {
    at::NoGradGuard no_grad;
    ppo::training::split(*whole, *rounded, *rest);
  });
}

// The same, and sets bit `first` + i of `marks`, uint8, for every number i whose rounded half becomes another one.
char* ppo_master_split_marked(
    const at::Tensor* whole, const at::Tensor* rounded, const at::Tensor* rest, const at::Tensor* marks, int64_t first) {
  return ppo::guarded([&] {
    at::NoGradGuard no_grad;
    ppo::training::split(*whole, *rounded, *rest, *marks, first);
  });
}

}  // extern "C"
