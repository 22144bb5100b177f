// llama.cpp as a peer: batched decoding through libllama, all sequences of the batch in one llama_batch per step.
// usage: llama_rollout MODEL.gguf PROMPTS THREADS NEW_TOKENS; the protocol and the workload are workload.py's.
#include "llama.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

using Tokens = std::vector<llama_token>;

static std::vector<Tokens> read_prompts(const char *path) {
  std::vector<Tokens> prompts;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    Tokens prompt;
    for (llama_token token; words >> token;) prompt.push_back(token);
    prompts.push_back(prompt);
  }
  return prompts;
}

static void fail(const std::string &what) {
  std::cerr << "llama_rollout: " << what << std::endl;
  std::exit(1);
}

// A batch under construction.
struct Batch {
  llama_batch raw;
  explicit Batch(int capacity) : raw(llama_batch_init(capacity, 0, 1)) {}
  ~Batch() { llama_batch_free(raw); }

  int add(llama_token token, int position, int sequence, bool wants_logits) {
    const int row = raw.n_tokens++;
    raw.token[row] = token;
    raw.pos[row] = position;
    raw.n_seq_id[row] = 1;
    raw.seq_id[row][0] = sequence;
    raw.logits[row] = wants_logits;
    return row;
  }
};

struct FreeSampler {
  void operator()(llama_sampler *sampler) const { llama_sampler_free(sampler); }
};
struct FreeContext {
  void operator()(llama_context *context) const { llama_free(context); }
};
using Context = std::unique_ptr<llama_context, FreeContext>;
using Sampler = std::unique_ptr<llama_sampler, FreeSampler>;

static Sampler temperature_one(uint32_t seed) {
  llama_sampler *chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
  llama_sampler_chain_add(chain, llama_sampler_init_temp(1.0f));
  llama_sampler_chain_add(chain, llama_sampler_init_dist(seed));
  return Sampler(chain);
}

static int generate(llama_context *context, const std::vector<Tokens> &prompts, int count, int new_tokens) {
  llama_memory_clear(llama_get_memory(context), true);
  Batch batch(llama_n_batch(context));
  std::vector<Sampler> samplers;
  std::vector<int> row(count), length(count);
  for (int s = 0; s < count; s++) {
    samplers.push_back(temperature_one(s));
    length[s] = static_cast<int>(prompts[s].size());
    for (int i = 0; i < length[s]; i++) row[s] = batch.add(prompts[s][i], i, s, i + 1 == length[s]);
  }
  int drawn = 0;
  for (int step = 0; step < new_tokens; step++) {
    if (llama_decode(context, batch.raw) != 0) fail("llama_decode failed");
    Tokens next(count);
    for (int s = 0; s < count; s++) next[s] = llama_sampler_sample(samplers[s].get(), context, row[s]);
    drawn += count;
    batch.raw.n_tokens = 0;
    for (int s = 0; s < count; s++) row[s] = batch.add(next[s], length[s]++, s, true);
  }
  return drawn;
}

int main(int argc, char **argv) {
  if (argc != 5) fail("usage: llama_rollout MODEL.gguf PROMPTS THREADS NEW_TOKENS");
  const auto prompts = read_prompts(argv[2]);
  const int threads = std::atoi(argv[3]), new_tokens = std::atoi(argv[4]);
  llama_log_set([](ggml_log_level level, const char *text, void *) { if (level == GGML_LOG_LEVEL_ERROR) std::cerr << text; }, nullptr);
  llama_backend_init();
  llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (!model) fail(std::string("cannot load ") + argv[1]);

  // A context fits one batch size; it is made, and warmed by one run, outside the clock.
  int size = 0;
  Context context;
  const auto prepare = [&](int count) {
    if (size == count) return;
    llama_context_params wanted = llama_context_default_params();
    wanted.n_ctx = 256 * count;
    wanted.n_seq_max = count;
    wanted.n_batch = 2048;
    wanted.n_threads = wanted.n_threads_batch = threads;
    context.reset();
    context.reset(llama_init_from_model(model, wanted));
    if (!context) fail("cannot make a context");
    if (size > 0) generate(context.get(), prompts, count, new_tokens);
    size = count;
  };
  prepare(1);
  std::cout << "BENCH {\"ready\": true}" << std::endl;
  for (int count; std::cin >> count;) {
    prepare(count);
    const auto began = std::chrono::steady_clock::now();
    const int tokens = generate(context.get(), prompts, count, new_tokens);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    std::cout << "BENCH {\"tokens\": " << tokens << ", \"seconds\": " << seconds << "}" << std::endl;
  }
  context.reset();
  llama_model_free(model);
}
