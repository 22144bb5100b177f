// A low-rank adapter into its weight, row by row: no product of the adapter's matrices is ever held whole.
#include "training.h"

namespace ppo::training {

// Columns at a time: the sums and the adapter's part of them stay in the inner cache.
constexpr int64_t kColumns = 512;

// output = weight + scale b a for the rows [begin, end) of weight [rows, width], a [rank, width], b [rows, rank]. Each number is
// summed over the rank in order, whatever the share of rows.
template <typename T>
PPO_INLINE void merge_block(const T* weight, const float* a, const float* b, float scale, T* output, int64_t begin, int64_t end,
                            int64_t rank, int64_t width) {
  float sum[kColumns];
  for (int64_t start = 0; start < width; start += kColumns) {
    const int64_t count = std::min(kColumns, width - start);
    for (int64_t row = begin; row < end; row++) {
      for (int64_t i = 0; i < count; i++) sum[i] = 0;
      for (int64_t r = 0; r < rank; r++) {
        const float factor = b[row * rank + r];
        const float* from = a + r * width + start;
#pragma omp simd
        for (int64_t i = 0; i < count; i++) sum[i] += factor * from[i];
      }
      const T* old = weight + row * width + start;
      T* merged = output + row * width + start;
#pragma omp simd
      for (int64_t i = 0; i < count; i++) store(merged, i, load(old, i) + scale * sum[i]);
    }
  }
}

#define PPO_MERGE(T)                                                                                                          \
  PPO_CLONES void merge_rows(const T* weight, const float* a, const float* b, float scale, T* output, int64_t begin,          \
                             int64_t end, int64_t rank, int64_t width) {                                                      \
    merge_block(weight, a, b, scale, output, begin, end, rank, width);                                                        \
  }
PPO_MERGE(float)
PPO_MERGE(Half16)

static Tensor merged(const Tensor& weight_, const Tensor& a_, const Tensor& b_, double scale) {
  const Tensor weight = weight_.contiguous(), a = a_.contiguous(), b = b_.contiguous();
  const int64_t rank = a.size(0);
  TORCH_CHECK(weight.dim() == 2 && a.dim() == 2 && b.dim() == 2 && a.size(1) == weight.size(1) && b.size(0) == weight.size(0) &&
                  b.size(1) == rank,
              "an adapter of ", a.sizes(), " and ", b.sizes(), " for a weight of ", weight.sizes());
  TORCH_CHECK(a.scalar_type() == at::kFloat && b.scalar_type() == at::kFloat, "an adapter is float32");
  const int64_t rows = weight.size(0), width = weight.size(1);
  Tensor output = at::empty_like(weight);
  PPO_DISPATCH(weight, {
    at::parallel_for(0, rows, rows_per_thread(width), [&](int64_t begin, int64_t end) {
      merge_rows(data<scalar>(weight), data<float>(a), data<float>(b), static_cast<float>(scale), data<scalar>(output), begin,
                 end, rank, width);
    });
  });
  return output;
}

}  // namespace ppo::training

extern "C" char* ppo_training_merge(const at::Tensor* weight, const at::Tensor* a, const at::Tensor* b, double scale,
                                    at::Tensor** output) {
  using namespace ppo::training;
  return guarded([&] {
    const bool kernels = has_kernels(*weight) && a->scalar_type() == at::kFloat;
    *output = new at::Tensor(kernels ? merged(*weight, *a, *b, scale) : stock::merge(*weight, *a, *b, scale));
  });
}
