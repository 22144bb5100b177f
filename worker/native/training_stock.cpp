// What the training kernels compute, by libtorch's operators: for tensors on a GPU. Each is differentiable by itself where libtorch's
// own graph of it would keep more for the backward pass than it has to. Written for any device, and tested on the CPU beside the kernels.
#include "training.h"

#include <ATen/OpMathType.h>

#include <mutex>

namespace ppo::training {

// Of this thread: a test computes without the kernels.
static thread_local bool without_kernels = false;

bool has_kernels(const Tensor& tensor) {
  const auto type = tensor.scalar_type();
  return !without_kernels && tensor.device().is_cpu() && (type == at::kFloat || type == at::kBFloat16);
}

namespace stock {

// What sums and exponentials are computed in: float32 for 16-bit numbers.
static at::ScalarType wide(const Tensor& tensor) { return at::toOpMathType(tensor.scalar_type()); }

Tensor rms_norm(const Tensor& input, const Tensor& weight, double eps) {
  // One kernel on a GPU, forward and backward, with statistics in float32.
  return at::rms_norm(input, weight.sizes(), weight, eps);
}

// ---- Rotary embedding: halves (a, b) of a head to (a cos - b sin, b cos + a sin). The backward pass rotates the other way.

// The sine of each half, with its sign: [tokens, 2, head_dim / 2].
static Tensor of_halves(const Tensor& sine) { return sine.dim() == 3 ? sine : at::stack({sine.neg(), sine}, 1); }

// Three operators: a GPU of a small model waits for each to be launched. Products are in float32, and rounded when both are summed.
static Tensor rotated(const Tensor& heads, const Tensor& cosine, const Tensor& sine, double direction) {
  TORCH_CHECK(heads.size(2) == 2 * cosine.size(1), "rotation of ", cosine.sizes(), " for ", heads.sizes());
  const Tensor halves = heads.reshape({heads.size(0), heads.size(1), 2, cosine.size(1)});
  Tensor output = at::empty_like(halves);
  at::addcmul_out(output, halves * cosine.unsqueeze(1).unsqueeze(1), halves.flip(2), sine.unsqueeze(1), direction);
  return output.view(heads.sizes());
}

struct Rotate : torch::autograd::Function<Rotate> {
  static Tensor forward(AutogradContext* ctx, const Tensor& heads, const Tensor& cosine, const Tensor& sine) {
    const Tensor both = of_halves(sine);
    ctx->save_for_backward({cosine, both});
    return rotated(heads, cosine, both, 1);
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    return {rotated(gradients[0], saved[0], saved[1], -1), Tensor(), Tensor()};
  }
};

Tensor rotate(const Tensor& heads, const Tensor& cosine, const Tensor& sine) { return Rotate::apply(heads, cosine, sine); }

// ---- silu(gate) * up; silu of the gate is not kept.

struct Gate : torch::autograd::Function<Gate> {
  static Tensor forward(AutogradContext* ctx, const Tensor& gate, const Tensor& up) {
    ctx->save_for_backward({gate, up});
    return at::silu(gate).mul_(up);
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    return gate_backward(gradients[0], saved[0], saved[1]);
  }
};

variable_list gate_backward(const Tensor& gradient, const Tensor& gate, const Tensor& up) {
  return {at::silu_backward(gradient * up, gate), at::silu(gate).mul_(gradient)};
}

Tensor gate(const Tensor& gate, const Tensor& up) { return Gate::apply(gate, up); }

// Held while deterministic operators are required, and by whoever must not meet that (ppo_operators_hold): a graph that is captured
// keeps the operators that were chosen for it.
static std::mutex choice_of_operators;

// While it lives libtorch chooses deterministic operators, where `tensor` is on a GPU. Without exceptions: only then is the backward
// pass of its attention deterministic (aten/src/ATen/native/transformers/cuda/attention_backward.cu). The choice is of the whole
// process, so it is made for moments: an operator without a deterministic form, in whatever thread, would be an error meanwhile, and
// an engine's writes to its cache slower. Nothing in such a moment may wait for a thread that captures, nor require it once more.
//
// Of the other operators of training, those that would differ write or add to places of which no two are the same, or add zeros.
struct Deterministically {
  std::unique_lock<std::mutex> chosen;
  explicit Deterministically(const Tensor& tensor) : chosen(choice_of_operators, std::defer_lock) {
    if (!tensor.is_cuda()) return;
    chosen.lock();
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  }
  ~Deterministically() {
    if (chosen.owns_lock()) at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
  }
};

// ---- Embedding: a gradient of the whole table is never made where one gathers already.

struct Embed : torch::autograd::Function<Embed> {
  static Tensor forward(AutogradContext* ctx, const Tensor& weight, const Tensor& ids) {
    ctx->save_for_backward({weight, ids});
    return weight.index_select(0, ids);
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    const Tensor& weight = saved[0];
    const Tensor gathered = gathered_gradient(weight);
    Tensor table = gathered.defined() ? gathered : gradient_table(weight);
    // A GPU sorts the ids then, and adds in that order (index_add_cuda_impl in aten/src/ATen/native/cuda/Indexing.cu).
    const Deterministically deterministically(table);
    table.index_add_(0, saved[1], gradients[0].to(table.scalar_type()));
    return {gathered.defined() ? Tensor() : table.to(weight.scalar_type()), Tensor()};
  }
};

Tensor embed(const Tensor& weight, const Tensor& ids) { return Embed::apply(weight, ids); }

// ---- Attention of packed sequences

// _MaskType of aten/src/ATen/native/transformers/attention.h: a token sees itself and those before it.
constexpr int64_t kCausal = 1;

static bool is_half(const Tensor& tensor) { return tensor.scalar_type() == at::kBFloat16 || tensor.scalar_type() == at::kHalf; }

// What libtorch's kernels for packed sequences on a GPU take: FlashAttention-2 (Dao 2023, arXiv:2307.08691) 16-bit numbers, and the
// memory-efficient attention of xFormers float32.
static bool is_for_gpu_kernels(const Tensor& queries) {
  const int64_t dim = queries.size(2);
  return queries.is_cuda() && (is_half(queries) ? dim % 8 == 0 && dim <= 256 : queries.scalar_type() == at::kFloat && dim % 4 == 0);
}

struct PackedAttention : torch::autograd::Function<PackedAttention> {
  // queries [tokens, heads, dim], keys and values [tokens, kv_heads, dim] -> [tokens, heads, dim]
  static Tensor forward(AutogradContext* ctx, const Tensor& queries, const Tensor& keys, const Tensor& values,
                        const Tensor& boundaries, int64_t longest) {
    ctx->saved_data["longest"] = longest;
    if (is_half(queries)) {
      const auto [output, lse, random, unused, mask] = at::_flash_attention_forward(
          queries, keys, values, boundaries, boundaries, longest, longest, /*dropout_p=*/0.0, /*is_causal=*/true,
          /*return_debug_mask=*/false);
      ctx->save_for_backward({queries, keys, values, boundaries, output, lse, random, unused});
      return output;
    }
    const auto [output, lse, seed, offset, longest_queries, longest_keys] = at::_efficient_attention_forward(
        queries.unsqueeze(0), spread(queries, keys), spread(queries, values), /*bias=*/std::nullopt, boundaries, boundaries,
        longest, longest, /*dropout_p=*/0.0, kCausal, /*compute_log_sumexp=*/true);
    ctx->save_for_backward({queries, keys, values, boundaries, output, lse, seed, offset});
    return output.squeeze(0);
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &queries = saved[0], &keys = saved[1], &values = saved[2], &boundaries = saved[3], &output = saved[4],
                 &lse = saved[5];
    const int64_t longest = ctx->saved_data["longest"].toInt();
    const Deterministically deterministically(queries);
    if (is_half(queries)) {
      auto [of_queries, of_keys, of_values] = at::_flash_attention_backward(
          gradients[0], queries, keys, values, output, lse, boundaries, boundaries, longest, longest, /*dropout_p=*/0.0,
          /*is_causal=*/true, saved[6], saved[7]);
      return {of_queries, of_keys, of_values, Tensor(), Tensor()};
    }
    auto [of_queries, of_keys, of_values, of_bias] = at::_efficient_attention_backward(
        gradients[0].unsqueeze(0), queries.unsqueeze(0), spread(queries, keys), spread(queries, values), /*bias=*/std::nullopt,
        output, boundaries, boundaries, longest, longest, lse, /*dropout_p=*/0.0, saved[6], saved[7], kCausal,
        /*bias_requires_grad=*/false, /*scale=*/std::nullopt, /*num_splits_key=*/1);
    return {of_queries.squeeze(0), gather(of_keys, keys), gather(of_values, values), Tensor(), Tensor()};
  }

  // [1, tokens, heads, dim]: each key and value for every query head of its group.
  static Tensor spread(const Tensor& queries, const Tensor& rows) {
    const int64_t group = queries.size(1) / rows.size(1);
    return (group == 1 ? rows : rows.repeat_interleave(group, 1)).unsqueeze(0);
  }

  // The way back of a gradient.
  static Tensor gather(const Tensor& gradient, const Tensor& rows) {
    return gradient.view({rows.size(0), rows.size(1), -1, rows.size(2)}).sum(2);
  }
};

// Any device, precision and dimension: over sequences padded to the longest.
static Tensor padded_attention(const Tensor& queries, const Tensor& keys, const Tensor& values, at::IntArrayRef lengths,
                               int64_t tokens) {
  const int64_t count = static_cast<int64_t>(lengths.size()), longest = *std::max_element(lengths.begin(), lengths.end());
  // Packed row of each padded slot (padding reads row 0, which nothing after it sees), and padded slot of each packed row.
  std::vector<int64_t> packed(count * longest, 0), slots;
  for (int64_t sequence = 0; sequence < count; sequence++)
    for (int64_t position = 0; position < lengths[sequence]; position++) {
      packed[sequence * longest + position] = static_cast<int64_t>(slots.size());
      slots.push_back(sequence * longest + position);
    }
  const auto on_device = [&](const std::vector<int64_t>& places) {
    return at::tensor(places, at::kLong).to(queries.device());
  };
  const Tensor rows = on_device(packed);
  const int64_t group = queries.size(1) / keys.size(1);
  const auto pad = [&](const Tensor& tensor, int64_t repeat) {
    const Tensor spread = repeat == 1 ? tensor : tensor.repeat_interleave(repeat, 1);
    return spread.index_select(0, rows).view({count, longest, queries.size(1), queries.size(2)}).transpose(1, 2);
  };
  const Tensor mixed = at::scaled_dot_product_attention(pad(queries, 1), pad(keys, group), pad(values, group), std::nullopt,
                                                        /*dropout_p=*/0.0, /*is_causal=*/true);
  return mixed.transpose(1, 2).reshape({count * longest, queries.size(1), queries.size(2)}).index_select(0, on_device(slots));
}

Tensor attention(const Tensor& queries, const Tensor& keys, const Tensor& values, at::IntArrayRef lengths,
                 const Tensor& boundaries) {
  TORCH_CHECK(!lengths.empty() && keys.size(1) > 0 && queries.size(1) % keys.size(1) == 0, queries.size(1),
              " query heads for ", keys.size(1), " key heads of ", lengths.size(), " sequences");
  const int64_t rows = queries.size(0), longest = *std::max_element(lengths.begin(), lengths.end());
  int64_t tokens = 0;
  for (const int64_t length : lengths) tokens += length;
  TORCH_CHECK(tokens <= rows, tokens, " tokens in ", rows, " rows");
  const auto real = [&](const Tensor& tensor) { return tokens == rows ? tensor : tensor.narrow(0, 0, tokens); };
  const Tensor mixed = is_for_gpu_kernels(queries)
                           ? PackedAttention::apply(real(queries), real(keys), real(values), boundaries, longest)
                           : padded_attention(real(queries), real(keys), real(values), lengths, tokens);
  // Rows after the last sequence answer zero, as the kernel's do.
  return tokens == rows ? mixed : at::constant_pad_nd(mixed, {0, 0, 0, 0, 0, rows - tokens});
}

// ---- An adapter into its weight

Tensor merge(const Tensor& weight, const Tensor& a, const Tensor& b, double scale) {
  at::NoGradGuard no_grad;
  // Not in place: to() is the weight itself where the kinds are the same, and it stays frozen.
  return at::addmm(weight.to(a.scalar_type()), b, a, 1, scale).to(weight.scalar_type());
}

// ---- Float32 in two halves

void join(const Tensor& rounded, const Tensor& rest, const Tensor& whole) {
  Tensor bits = whole.view(at::kInt);
  // A tensor, not a number: it widens what is shifted.
  at::bitwise_left_shift_out(bits, rounded.view(at::kShort), at::full({1}, 16, bits.options()));
  bits.add_(rest);
}

void split(const Tensor& whole, const Tensor& rounded, const Tensor& rest) {
  // Lower and upper half of each number.
  const Tensor halves = whole.view(at::kShort).view({-1, 2});
  rest.copy_(halves.select(1, 0));
  // One is carried where the rest is below zero.
  Tensor upper = rounded.view(at::kShort);
  at::sub_out(upper, halves.select(1, 1), rest.bitwise_right_shift(15));
}

void split(const Tensor& whole, const Tensor& rounded, const Tensor& rest, const Tensor& marks, int64_t first) {
  const Tensor before = rounded.view(at::kShort).clone();
  split(whole, rounded, rest);
  // Filled up to whole bytes on both sides.
  const int64_t front = first % 8, bytes = (front + whole.numel() + 7) / 8;
  const Tensor changed = at::constant_pad_nd(before.ne(rounded.view(at::kShort)).to(at::kByte),
                                             {front, bytes * 8 - front - whole.numel()});
  const Tensor bit = at::bitwise_left_shift(at::ones({8}, changed.options()), at::arange(8, changed.options()));
  const Tensor packed = changed.view({bytes, 8}).mul(bit).sum(1, /*keepdim=*/false, at::kByte);
  marks.narrow(0, first / 8, bytes).bitwise_or_(packed);
}

// ---- Log-probabilities of given tokens: rows of logits by the slice, computed again in the backward pass or kept for it

// Of one slice of logits in float32: products that keep a GPU busy, and little beside the weights; or what a cache holds.
static int64_t slice_rows(const Tensor& hidden, int64_t vocab) {
  const int64_t bytes = int64_t{hidden.is_cpu() ? 4 : 256} << 20;
  return std::max<int64_t>(1, bytes / 4 / std::max<int64_t>(1, vocab));
}

struct TokenLogprobs : torch::autograd::Function<TokenLogprobs> {
  // hidden [rows, width], weight [vocab, width], targets [rows] int64 -> logprobs [rows], entropy [rows], or zeros where it is not wanted
  static variable_list forward(AutogradContext* ctx, const Tensor& hidden, const Tensor& weight, const Tensor& targets,
                               double temperature, int64_t kept_bytes, bool wants_entropy) {
    // Nothing is computed for the gradient of what no loss has: most runs only measure the entropy.
    ctx->set_materialize_grads(false);
    const int64_t rows = hidden.size(0), vocab = weight.size(0), step = slice_rows(hidden, vocab);
    TORCH_CHECK(targets.numel() == rows, targets.numel(), " targets for ", rows, " rows");
    const auto options = hidden.options().dtype(wide(hidden));
    Tensor logprobs = at::empty({rows}, options), lse = at::empty({rows}, options);
    const Tensor entropy = wants_entropy ? at::empty({rows}, options) : at::zeros({rows}, options);
    const bool keep = rows * vocab * static_cast<int64_t>(logprobs.element_size()) <= kept_bytes;
    std::vector<Tensor> kept;
    for (int64_t start = 0; start < rows; start += step) {
      const int64_t count = std::min(step, rows - start);
      Tensor logits = wide_product(hidden.narrow(0, start, count), weight);
      if (keep) kept.push_back(logits);
      if (temperature != 1) logits = keep ? logits.div(temperature) : logits.div_(temperature);
      const Tensor sums = logits.logsumexp(1);
      logprobs.narrow(0, start, count).copy_(logits.gather(1, targets.narrow(0, start, count).unsqueeze(1)).squeeze(1) - sums);
      lse.narrow(0, start, count).copy_(sums);
      if (!wants_entropy) continue;
      const bool is_kept = keep && temperature == 1;
      const Tensor all = is_kept ? logits.sub(sums.unsqueeze(1)) : logits.sub_(sums.unsqueeze(1));
      // e^x is 0 where x is minus infinity, and their product no number; no logit of a model is.
      entropy.narrow(0, start, count).copy_(at::mul(all, all.exp()).sum(1).neg_());
    }
    ctx->save_for_backward({hidden, weight, targets, lse, entropy});
    ctx->saved_data["temperature"] = temperature;
    ctx->saved_data["kept"] = kept;
    return {logprobs, entropy.clone()};
  }

  // With p = e^(z - lse), z = logit / temperature:
  //   d logprob / dz_j = [j = target] - p_j        d entropy / dz_j = -p_j (log p_j + entropy)
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &hidden = saved[0], &weight = saved[1], &targets = saved[2], &lse = saved[3], &entropy = saved[4];
    const int64_t rows = hidden.size(0), step = slice_rows(hidden, weight.size(0));
    const double scale = 1.0 / ctx->saved_data["temperature"].toDouble();
    std::vector<Tensor> kept = ctx->saved_data["kept"].toTensorVector();
    ctx->saved_data["kept"] = std::vector<Tensor>();
    const Tensor of_logprob = gradients[0].defined() ? gradients[0] : at::zeros_like(lse), of_entropy = gradients[1];
    const bool wants_hidden = ctx->needs_input_grad(0), wants_weight = ctx->needs_input_grad(1);

    Tensor hidden_gradient = wants_hidden ? at::empty_like(hidden) : Tensor();
    const Tensor gathered = wants_weight ? gathered_gradient(weight) : Tensor();
    // Slices add up in float32 whatever the weight is.
    const Tensor fresh = wants_weight && !gathered.defined() ? at::zeros(weight.sizes(), lse.options()) : Tensor();
    for (int64_t start = 0, slice = 0; start < rows; start += step, slice++) {
      const int64_t count = std::min(step, rows - start);
      const auto cut = [&](const Tensor& tensor) { return tensor.narrow(0, start, count); };
      const auto column = [&](const Tensor& tensor) { return cut(tensor).unsqueeze(1); };
      Tensor logits = kept.empty() ? wide_product(cut(hidden), weight) : std::move(kept[slice]);
      if (scale != 1) logits.mul_(scale);
      const Tensor wide_gradient = of_softmax(logits.sub_(column(lse)), column(of_logprob), of_entropy.defined() ? column(of_entropy) : Tensor(),
                                              column(entropy), scale);
      // One target a row: no two of them meet.
      const Tensor at_target = wide_gradient.gather(1, column(targets)).add_(column(of_logprob), scale);
      wide_gradient.scatter_(1, column(targets), at_target);
      const Tensor gradient = wide_gradient.to(hidden.scalar_type());
      if (wants_hidden) product_into(gradient, weight.t(), false, cut(hidden_gradient));
      if (wants_weight) product_into(gradient.t(), cut(hidden).t(), true, gathered.defined() ? gathered : fresh);
    }
    return {hidden_gradient, fresh.defined() ? fresh.to(weight.scalar_type()) : fresh, Tensor(), Tensor(), Tensor(), Tensor()};
  }

  // -scale p (of_logprob + of_entropy (log p + entropy)), in place of log p. Each operator here goes over a slice's logits once.
  static Tensor of_softmax(const Tensor& logp, const Tensor& of_logprob, const Tensor& of_entropy, const Tensor& entropy, double scale) {
    if (!of_entropy.defined()) return logp.exp_().mul_(of_logprob * -scale);
    const Tensor p = logp.exp();
    return logp.add_(entropy).mul_(of_entropy).add_(of_logprob).mul_(p).mul_(-scale);
  }
};

variable_list token_logprobs(const Tensor& hidden, const Tensor& weight, const Tensor& targets, double temperature,
                             int64_t kept_bytes, bool wants_entropy) {
  return TokenLogprobs::apply(hidden, weight, targets, temperature, kept_bytes, wants_entropy);
}

}  // namespace stock
}  // namespace ppo::training

extern "C" {

// Waits until no thread requires deterministic operators. None does then before the same thread has released them.
void ppo_operators_hold() noexcept { ppo::training::stock::choice_of_operators.lock(); }

void ppo_operators_release() noexcept { ppo::training::stock::choice_of_operators.unlock(); }

// For tests: whether this thread computes without the kernels from now on.
void ppo_training_without_kernels(bool yes) { ppo::training::without_kernels = yes; }

}  // extern "C"
