// Flash attention over packed sequences. The call goes through the dispatcher, which lives in libtorch_cpu; the kernel registers
// itself when libtorch_cuda is loaded, so nothing here needs CUDA to compile or to link.
#include "training.h"

#include <ATen/ops/_flash_attention_forward.h>

using ppo::training::guarded;

extern "C" {

// Softmax attention of sequence i: queries of rows [cu_q[i], cu_q[i + 1]) over the keys of rows [cu_k[i], cu_k[i] + used_k[i]), without
// used_k up to cu_k[i + 1]. With used_k the rows that cu_k names may lie anywhere: FlashAttention 2 reads cu_k[i] as an
// offset alone then (block_info.h). queries [rows, heads, dim], keys and values [rows, kv_heads, dim]; cu_q, cu_k and used_k are
// int32. Writes the output [rows, heads, dim] and the logarithms of the sums [heads, rows] in float32.
char* ppo_flash_attention(at::Tensor* queries, at::Tensor* keys, at::Tensor* values, at::Tensor* cu_q, at::Tensor* cu_k,
                          at::Tensor* used_k, int64_t max_q, int64_t max_k, bool causal, at::Tensor** output, at::Tensor** lse) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    std::optional<at::Tensor> used;
    if (used_k != nullptr) used = *used_k;
    auto results = at::_flash_attention_forward(*queries, *keys, *values, *cu_q, *cu_k, max_q, max_k, /*dropout_p=*/0.0, causal,
                                                /*return_debug_mask=*/false, /*scale=*/std::nullopt,
                                                /*window_size_left=*/std::nullopt, /*window_size_right=*/std::nullopt, used,
                                                /*alibi_slopes=*/std::nullopt);
    TORCH_CHECK(std::get<1>(results).dim() == 2, "log-sum-exps of shape ", std::get<1>(results).sizes(),
                ": [heads, rows] was expected of this libtorch");
    *output = new at::Tensor(std::get<0>(results));
    *lse = new at::Tensor(std::get<1>(results));
  });
}

}  // extern "C"
