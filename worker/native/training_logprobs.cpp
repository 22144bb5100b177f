// Log-probability of a given token and entropy of its row, from hidden states, without ever holding all logits of all rows
// when they are many: the vocabulary goes by in slices, with the running maximum and sums of the online softmax (Milakov and
// Gimelshein 2018, arXiv:1805.02867). The backward pass computes the slices again (or takes the kept ones) and finishes each
// slice's weight gradient at once. Logits are float32 whatever the model's numbers are, as the rollout engine's are.
#include "training.h"

namespace ppo::training {

// Size of a slice of logits: it should stay in the outer cache between the product and the softmax.
constexpr int64_t kSliceBytes = int64_t{4} << 20;

static int64_t slice_width(int64_t rows, int64_t vocab) {
  const int64_t width = kSliceBytes / 4 / std::max<int64_t>(rows, 1) / 64 * 64;
  return std::min(vocab, std::max<int64_t>(width, 512));
}

// Of one row so far: m = max z, s = sum e^(z - m), v = sum (z - m) e^(z - m), z = logit / temperature.
struct Running {
  float *m, *s, *v;
};

PPO_INLINE void softmax_row(const float* logits, int64_t count, float scale, float& m, float& s, float& v) {
  float top = -INFINITY;
#pragma omp simd reduction(max : top)
  for (int64_t i = 0; i < count; i++) {
    const float z = logits[i] * scale;
    top = z > top ? z : top;
  }
  if (top > m) {
    const float down = exponential(m - top);
    // (z - top) = (z - m) + (m - top), times e^(m - top); the first slice has nothing to move.
    v = s > 0 ? down * (v + (m - top) * s) : 0;
    s *= down;
    m = top;
  }
  float sum = 0, weighted = 0;
  const float base = m;
#pragma omp simd reduction(+ : sum, weighted)
  for (int64_t i = 0; i < count; i++) {
    const float d = logits[i] * scale - base, e = exponential(d);
    sum += e;
    weighted += d * e;
  }
  s += sum;
  v += weighted;
}

PPO_CLONES void softmax_rows(const float* logits, int64_t begin, int64_t end, int64_t count, float scale, Running running) {
  for (int64_t row = begin; row < end; row++)
    softmax_row(logits + row * count, count, scale, running.m[row], running.s[row], running.v[row]);
}

// Gradient with respect to a row of logits, in their place, with p = e^(z - lse):
//   d logprob / dz_j = [j = target] - p_j        d entropy / dz_j = -p_j (log p_j + entropy)
// The [j = target] term is added by the caller.
PPO_CLONES void gradient_row(float* logits, int64_t count, float scale, float lse, float entropy, float of_logprob, float of_entropy) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++) {
    const float logp = logits[i] * scale - lse;
    logits[i] = -scale * exponential(logp) * (of_logprob + of_entropy * (logp + entropy));
  }
}

PPO_CLONES void round_row(const float* from, Half16* to, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++) store(to, i, from[i]);
}

struct TokenLogprobs : torch::autograd::Function<TokenLogprobs> {
  // hidden [rows, width], weight [vocab, width], targets [rows] int64 -> logprobs [rows], entropy [rows], float32
  static variable_list forward(AutogradContext* ctx, const Tensor& hidden_, const Tensor& weight, const Tensor& targets_,
                               double temperature, int64_t kept_bytes) {
    const Tensor hidden = hidden_.contiguous(), targets = targets_.contiguous();
    const int64_t rows = hidden.size(0), vocab = weight.size(0), width = slice_width(rows, vocab);
    TORCH_CHECK(targets.numel() == rows, targets.numel(), " targets for ", rows, " rows");
    const float scale = static_cast<float>(1.0 / temperature);
    const int64_t* target = data<int64_t>(targets);
    for (int64_t row = 0; row < rows; row++)
      TORCH_CHECK(target[row] >= 0 && target[row] < vocab, "target ", target[row], " is outside the vocabulary of ", vocab);

    const auto wide = hidden.options().dtype(at::kFloat);
    Tensor m = at::full({rows}, -INFINITY, wide), s = at::zeros({rows}, wide), v = at::zeros({rows}, wide);
    Tensor chosen = at::empty({rows}, wide);
    const Running running{data<float>(m), data<float>(s), data<float>(v)};
    const bool keep = rows * vocab * static_cast<int64_t>(sizeof(float)) <= kept_bytes;
    std::vector<Tensor> kept;
    for (int64_t start = 0; start < vocab; start += width) {
      const int64_t count = std::min(width, vocab - start);
      const Tensor logits = wide_product(hidden, weight.narrow(0, start, count));
      const float* from = data<float>(logits);
      at::parallel_for(0, rows, rows_per_thread(count), [&](int64_t begin, int64_t end) {
        softmax_rows(from, begin, end, count, scale, running);
        for (int64_t row = begin; row < end; row++)
          if (target[row] >= start && target[row] < start + count) data<float>(chosen)[row] = from[row * count + target[row] - start] * scale;
      });
      if (keep) kept.push_back(logits);
    }
    Tensor lse = m + s.log(), entropy = s.log() - v / s;
    ctx->save_for_backward({hidden, weight, targets, lse, entropy});
    ctx->saved_data["temperature"] = temperature;
    ctx->saved_data["kept"] = kept;
    return {chosen - lse, entropy.clone()};
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &hidden = saved[0], &weight = saved[1], &targets = saved[2], &lse = saved[3], &entropy = saved[4];
    const int64_t rows = hidden.size(0), vocab = weight.size(0), width = slice_width(rows, vocab);
    const float scale = static_cast<float>(1.0 / ctx->saved_data["temperature"].toDouble());
    std::vector<Tensor> kept = ctx->saved_data["kept"].toTensorVector();
    ctx->saved_data["kept"] = std::vector<Tensor>();
    const auto given = [&](const Tensor& gradient) { return gradient.defined() ? gradient.contiguous() : at::zeros_like(lse); };
    const Tensor of_logprob = given(gradients[0]), of_entropy = given(gradients[1]);
    const bool wants_hidden = ctx->needs_input_grad(0), wants_weight = ctx->needs_input_grad(1);
    const bool is_half = hidden.scalar_type() == at::kBFloat16;

    Tensor hidden_gradient = wants_hidden ? at::zeros(hidden.sizes(), lse.options()) : Tensor();
    const Tensor gathered = wants_weight ? gathered_gradient(weight) : Tensor();
    const Tensor fresh = wants_weight && !gathered.defined() ? at::empty_like(weight) : Tensor();
    for (int64_t start = 0, slice = 0; start < vocab; start += width, slice++) {
      const int64_t count = std::min(width, vocab - start);
      const Tensor rows_of_weight = weight.narrow(0, start, count);
      const Tensor logits = kept.empty() ? wide_product(hidden, rows_of_weight) : std::move(kept[slice]);
      // Products multiply it in the weight's numbers.
      const Tensor gradient = is_half ? at::empty(logits.sizes(), hidden.options()) : logits;
      at::parallel_for(0, rows, rows_per_thread(count), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++) {
          float* at = data<float>(logits) + row * count;
          const float by_logprob = data<float>(of_logprob)[row];
          gradient_row(at, count, scale, data<float>(lse)[row], data<float>(entropy)[row], by_logprob, data<float>(of_entropy)[row]);
          const int64_t place = data<int64_t>(targets)[row] - start;
          if (place >= 0 && place < count) at[place] += scale * by_logprob;
          if (is_half) round_row(at, data<Half16>(gradient) + row * count, count);
        }
      });
      if (wants_hidden && !is_half) product_into(gradient, rows_of_weight.t(), true, hidden_gradient);
      else if (wants_hidden) hidden_gradient.add_(product(gradient, rows_of_weight.t()));
      if (gathered.defined()) product_into(gradient.t(), hidden.t(), true, gathered.narrow(0, start, count));
      else if (wants_weight) product_into(gradient.t(), hidden.t(), false, fresh.narrow(0, start, count));
    }
    if (wants_hidden) hidden_gradient = hidden_gradient.to(hidden.scalar_type());
    return {hidden_gradient, fresh, Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace ppo::training

extern "C" char* ppo_training_token_logprobs(const at::Tensor* hidden, const at::Tensor* weight, const at::Tensor* targets,
                                             double temperature, int64_t kept_bytes, bool wants_entropy, at::Tensor** logprobs,
                                             at::Tensor** entropy) {
  using namespace ppo::training;
  return guarded([&] {
    const bool differentiated = at::GradMode::is_enabled() && (hidden->requires_grad() || weight->requires_grad());
    const int64_t kept = differentiated ? kept_bytes : -1;
    const auto result = has_kernels(*hidden) ? TokenLogprobs::apply(*hidden, *weight, *targets, temperature, kept)
                                             : stock::token_logprobs(*hidden, *weight, *targets, temperature, kept, wants_entropy);
    *logprobs = new Tensor(result[0]);
    *entropy = new Tensor(result[1]);
  });
}
