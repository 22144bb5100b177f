// Row-wise layers between the products: embedding, RMSNorm, rotary embedding and the gated activation, forward and backward, each in one
// pass over its rows with float32 arithmetic. A row is computed by one thread in one order; sums over rows go over a fixed
// number of partial sums, so results do not depend on timing.
#include "training.h"

namespace ppo::training {

// ---- RMSNorm: output = weight * (x * r), r = 1 / sqrt(mean(x^2) + eps)

template <typename T>
PPO_INLINE float norm_row(const T* x, const T* weight, T* output, int64_t width, float eps) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < width; i++) sum += load(x, i) * load(x, i);
  const float r = 1.0f / std::sqrt(sum / static_cast<float>(width) + eps);
  for (int64_t i = 0; i < width; i++) store(output, i, load(weight, i) * (load(x, i) * r));
  return r;
}

// dx = r * (g w - x r^2 mean(g w x)); the row's share of dw = g x r is added to weight_gradient.
template <typename T>
PPO_INLINE void norm_row_backward(const T* gradient, const T* x, const T* weight, float r, T* x_gradient, float* weight_gradient,
                                  int64_t width) {
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t i = 0; i < width; i++) dot += load(gradient, i) * load(weight, i) * load(x, i);
  const float scale = dot * r * r / static_cast<float>(width);
#pragma omp simd
  for (int64_t i = 0; i < width; i++) {
    const float g = load(gradient, i), value = load(x, i);
    weight_gradient[i] += g * value * r;
    store(x_gradient, i, r * (g * load(weight, i) - value * scale));
  }
}

#define PPO_NORM(T)                                                                                                            \
  PPO_CLONES void norm_rows(const T* x, const T* weight, T* output, float* r, int64_t begin, int64_t end, int64_t width,       \
                            float eps) {                                                                                       \
    for (int64_t row = begin; row < end; row++)                                                                                \
      r[row] = norm_row(x + row * width, weight, output + row * width, width, eps);                                            \
  }                                                                                                                            \
  PPO_CLONES void norm_rows_backward(const T* gradient, const T* x, const T* weight, const float* r, T* x_gradient,            \
                                     float* weight_gradient, int64_t begin, int64_t end, int64_t width) {                      \
    for (int64_t row = begin; row < end; row++)                                                                                \
      norm_row_backward(gradient + row * width, x + row * width, weight, r[row], x_gradient + row * width, weight_gradient,    \
                        width);                                                                                                \
  }
PPO_NORM(float)
PPO_NORM(Half16)

kernels::Normed kernels::norm(const Tensor& input, const Tensor& weight, double eps) {
  const Tensor x = input.contiguous();
  TORCH_CHECK(x.size(-1) == weight.numel() && x.scalar_type() == weight.scalar_type(), "norm of width ", weight.numel(),
              " over rows of width ", x.size(-1));
  const int64_t width = x.size(-1), rows = x.numel() / width;
  Tensor output = at::empty_like(x), r = at::empty({rows}, x.options().dtype(at::kFloat));
  PPO_DISPATCH(x, {
    at::parallel_for(0, rows, rows_per_thread(width), [&](int64_t begin, int64_t end) {
      norm_rows(data<scalar>(x), data<scalar>(weight), data<scalar>(output), data<float>(r), begin, end, width,
                static_cast<float>(eps));
    });
  });
  return {output, r};
}

variable_list kernels::norm_backward(const Tensor& given, const Tensor& input, const Tensor& weight, const Tensor& r) {
  const Tensor gradient = given.contiguous(), x = input.contiguous();
  const int64_t width = x.size(-1), rows = r.numel();
  // One partial sum of the weight's gradient per thread's share of rows.
  const int64_t shares = std::max<int64_t>(1, std::min<int64_t>(at::get_num_threads(), rows / rows_per_thread(width)));
  Tensor x_gradient = at::empty_like(x), partial = at::zeros({shares, width}, r.options());
  PPO_DISPATCH(x, {
    at::parallel_for(0, shares, 1, [&](int64_t first, int64_t last) {
      for (int64_t share = first; share < last; share++)
        norm_rows_backward(data<scalar>(gradient), data<scalar>(x), data<scalar>(weight), data<float>(r),
                           data<scalar>(x_gradient), data<float>(partial) + share * width, rows * share / shares,
                           rows * (share + 1) / shares, width);
    });
  });
  return {x_gradient, partial.sum(0).to(weight.scalar_type())};
}

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  // x [..., width], weight [width]
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight, double eps) {
    const kernels::Normed normed = kernels::norm(x, weight, eps);
    ctx->save_for_backward({x, weight, normed.r});
    return normed.output;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    const variable_list answer = kernels::norm_backward(gradients[0], saved[0], saved[1], saved[2]);
    return {answer[0], answer[1], Tensor()};
  }
};

// ---- Rotary embedding: halves (a, b) of a head to (a cos - b sin, b cos + a sin)

template <typename T>
PPO_INLINE void rotate_head(const T* x, const float* cosine, const float* sine, float direction, T* output, int64_t half) {
#pragma omp simd
  for (int64_t i = 0; i < half; i++) {
    const float a = load(x, i), b = load(x, half + i), c = cosine[i], s = direction * sine[i];
    store(output, i, a * c - b * s);
    store(output, half + i, b * c + a * s);
  }
}

#define PPO_ROTATE(T)                                                                                                       \
  PPO_CLONES void rotate_rows(const T* x, const float* cosine, const float* sine, float direction, T* output, int64_t begin, \
                              int64_t end, int64_t heads, int64_t half) {                                                   \
    for (int64_t row = begin; row < end; row++)                                                                             \
      for (int64_t head = 0; head < heads; head++) {                                                                        \
        const int64_t at = (row * heads + head) * 2 * half;                                                                 \
        rotate_head(x + at, cosine + row * half, sine + row * half, direction, output + at, half);                          \
      }                                                                                                                     \
  }
PPO_ROTATE(float)
PPO_ROTATE(Half16)

// x [tokens, heads, head_dim]; cosine, sine [tokens, head_dim / 2] float32. The backward pass rotates the other way.
static Tensor rotated(const Tensor& input, const Tensor& cosine, const Tensor& sine, float direction) {
  const Tensor x = input.contiguous();
  const int64_t tokens = x.size(0), heads = x.size(1), half = x.size(2) / 2;
  TORCH_CHECK(cosine.numel() == tokens * half && sine.numel() == tokens * half, "rotation of ", cosine.sizes(), " for ",
              x.sizes());
  Tensor output = at::empty_like(x);
  PPO_DISPATCH(x, {
    at::parallel_for(0, tokens, rows_per_thread(heads * half * 2), [&](int64_t begin, int64_t end) {
      rotate_rows(data<scalar>(x), data<float>(cosine), data<float>(sine), direction, data<scalar>(output), begin, end, heads,
                  half);
    });
  });
  return output;
}

struct Rotate : torch::autograd::Function<Rotate> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& cosine, const Tensor& sine) {
    ctx->save_for_backward({cosine, sine});
    return rotated(x, cosine, sine, 1.0f);
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    return {rotated(gradients[0], saved[0], saved[1], -1.0f), Tensor(), Tensor()};
  }
};

// ---- Gated activation: silu(gate) * up, silu(x) = x / (1 + e^-x)

template <typename T>
PPO_INLINE void gate_row(const T* gate, const T* up, T* output, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++) {
    const float g = load(gate, i);
    store(output, i, g / (1.0f + exponential(-g)) * load(up, i));
  }
}

template <typename T>
PPO_INLINE void gate_row_backward(const T* gradient, const T* gate, const T* up, T* gate_gradient, T* up_gradient,
                                  int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++) {
    const float d = load(gradient, i), g = load(gate, i), u = load(up, i);
    const float s = 1.0f / (1.0f + exponential(-g));
    store(gate_gradient, i, d * u * s * (1.0f + g * (1.0f - s)));
    store(up_gradient, i, d * g * s);
  }
}

#define PPO_GATE(T)                                                                                                       \
  PPO_CLONES void gate_rows(const T* gate, const T* up, T* output, int64_t count) { gate_row(gate, up, output, count); }  \
  PPO_CLONES void gate_rows_backward(const T* gradient, const T* gate, const T* up, T* gate_gradient, T* up_gradient,     \
                                     int64_t count) {                                                                     \
    gate_row_backward(gradient, gate, up, gate_gradient, up_gradient, count);                                             \
  }
PPO_GATE(float)
PPO_GATE(Half16)

Tensor kernels::gate(const Tensor& gate_, const Tensor& up_) {
  const Tensor gate = gate_.contiguous(), up = up_.contiguous();
  Tensor output = at::empty_like(gate);
  PPO_DISPATCH(gate, {
    at::parallel_for(0, gate.numel(), 16384, [&](int64_t begin, int64_t end) {
      gate_rows(data<scalar>(gate) + begin, data<scalar>(up) + begin, data<scalar>(output) + begin, end - begin);
    });
  });
  return output;
}

variable_list kernels::gate_backward(const Tensor& given, const Tensor& gate_, const Tensor& up_) {
  const Tensor gradient = given.contiguous(), gate = gate_.contiguous(), up = up_.contiguous();
  Tensor gate_gradient = at::empty_like(gate), up_gradient = at::empty_like(up);
  PPO_DISPATCH(gate, {
    at::parallel_for(0, gate.numel(), 16384, [&](int64_t begin, int64_t end) {
      gate_rows_backward(data<scalar>(gradient) + begin, data<scalar>(gate) + begin, data<scalar>(up) + begin,
                         data<scalar>(gate_gradient) + begin, data<scalar>(up_gradient) + begin, end - begin);
    });
  });
  return {gate_gradient, up_gradient};
}

struct Gate : torch::autograd::Function<Gate> {
  static Tensor forward(AutogradContext* ctx, const Tensor& gate, const Tensor& up) {
    ctx->save_for_backward({gate, up});
    return kernels::gate(gate, up);
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    return kernels::gate_backward(gradients[0], saved[0], saved[1]);
  }
};

// ---- Embedding: rows of a table. A gradient of the whole table is never made where one gathers already.

template <typename From, typename To>
PPO_INLINE void add_row(const From* from, To* to, int64_t width) {
#pragma omp simd
  for (int64_t i = 0; i < width; i++) store(to, i, load(to, i) + load(from, i));
}

#define PPO_ADD(From, To)                                                                                     \
  PPO_CLONES void add_rows(const From* from, const int64_t* ids, int64_t rows, To* table, int64_t width) {    \
    for (int64_t row = 0; row < rows; row++) add_row(from + row * width, table + ids[row] * width, width);    \
  }
PPO_ADD(float, float)
PPO_ADD(Half16, float)
PPO_ADD(Half16, Half16)

struct Embed : torch::autograd::Function<Embed> {
  // weight [vocab, width], ids [rows] int64 -> [rows, width]
  static Tensor forward(AutogradContext* ctx, const Tensor& weight, const Tensor& ids) {
    ctx->save_for_backward({weight, ids.contiguous()});
    return weight.index_select(0, ids);
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &weight = saved[0], &ids = saved[1], gradient = gradients[0].contiguous();
    const Tensor gathered = gathered_gradient(weight);
    const Tensor table = gathered.defined() ? gathered : gradient_table(weight);
    // By one thread, since ids repeat.
    const auto add = [&](const auto* from, auto* to) { add_rows(from, data<int64_t>(ids), ids.numel(), to, weight.size(1)); };
    PPO_DISPATCH(weight, {
      if (table.scalar_type() == at::kFloat) add(data<scalar>(gradient), data<float>(table));
      else add(data<scalar>(gradient), data<scalar>(table));
    });
    return {gathered.defined() ? Tensor() : table.to(weight.scalar_type()), Tensor()};
  }
};

}  // namespace ppo::training

using namespace ppo::training;

extern "C" char* ppo_training_rms_norm(const Tensor* input, const Tensor* weight, double eps, Tensor** output) {
  return guarded([&] { *output = new Tensor(has_kernels(*input) ? RmsNorm::apply(*input, *weight, eps) : stock::rms_norm(*input, *weight, eps)); });
}

extern "C" char* ppo_training_rotate(const Tensor* heads, const Tensor* cosine, const Tensor* sine, Tensor** output) {
  return guarded([&] { *output = new Tensor(has_kernels(*heads) ? Rotate::apply(*heads, *cosine, *sine) : stock::rotate(*heads, *cosine, *sine)); });
}

extern "C" char* ppo_training_gate(const Tensor* gate, const Tensor* up, Tensor** output) {
  return guarded([&] { *output = new Tensor(has_kernels(*gate) ? Gate::apply(*gate, *up) : stock::gate(*gate, *up)); });
}

extern "C" char* ppo_training_embed(const Tensor* weight, const Tensor* ids, Tensor** output) {
  return guarded([&] { *output = new Tensor(has_kernels(*weight) ? Embed::apply(*weight, *ids) : stock::embed(*weight, *ids)); });
}
