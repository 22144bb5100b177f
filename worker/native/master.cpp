// Float32 numbers in two halves of 16 bits: the bfloat16 that a number rounds to, and what rounding took away. Its bits are those of the
// bfloat16, shifted, plus the other half as a signed number; halves round away from zero.
#include "training.h"

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

}  // extern "C"
