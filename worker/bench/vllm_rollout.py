"""vLLM's CPU engine as a peer. usage: vllm_rollout.py MODEL_DIR DTYPE PROMPTS THREADS"""
import os
import sys

from workload import BATCHES, LONGEST, NEW_TOKENS, read_prompts, serve


def processors(count):
    """So many of the processors that this process may use, as vLLM's own choice: one of each core, before any core's second."""
    def turn(processor):
        try:
            with open(f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list", encoding="utf-8") as text:
                siblings = [int(number) for number in text.read().replace("-", ",").split(",")]
        except OSError:
            siblings = [processor]
        return processor != min(siblings), processor

    return ",".join(map(str, sorted(os.sched_getaffinity(0), key=turn)[:count]))


def main():
    path, dtype, prompts, threads = sys.argv[1:]
    # The engine in this process, so that its memory is this process's; the smallest cache it accepts, in GiB.
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND=processors(int(threads)),
                      VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="WARNING")
    from vllm import LLM, SamplingParams

    engine = LLM(model=path, dtype=dtype, max_model_len=2 * (LONGEST + NEW_TOKENS), max_num_seqs=max(BATCHES), max_num_batched_tokens=4096,
                 enable_prefix_caching=False, disable_log_stats=True, seed=0)
    prompts = read_prompts(prompts)
    sampling = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, max_tokens=NEW_TOKENS, min_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False)

    def generate(batch):
        outputs = engine.generate([{"prompt_token_ids": prompt} for prompt in prompts[:batch]], sampling, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    serve(generate)


if __name__ == "__main__":
    main()
