"""Rollout speed: every engine on the same prompts, in turns."""
import pathlib
import statistics
import sys

import environments
from process import BenchError, Process
from workload import BATCHES, NEW_TOKENS, rollout_prompts

HERE = pathlib.Path(__file__).parent
# vLLM compiles its model when it starts.
START_DEADLINE, RUN_DEADLINE, END_DEADLINE = 900, 300, 120


def write_prompts(models, size, vocabulary):
    path = models / size / "prompts.txt"
    path.write_text("".join(" ".join(map(str, prompt)) + "\n" for prompt in rollout_prompts(vocabulary)))
    return path


def start(engine, folder, dtype, prompts, options):
    """A process of `engine` that serves workload.py's protocol."""
    threads = str(options.threads)
    environment = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "HF_HUB_OFFLINE": "1", "PPO_THREADS": threads}
    model = folder / f"policy-{dtype}"
    if engine == "ours":
        command = [options.binaries / "ppo-bench", "rollout", "--model", model, "--dtype", dtype, "--prompts", prompts,
                   "--new-tokens", NEW_TOKENS, "--threads", threads]
    elif engine == "transformers":
        command = [environments.torch(), HERE / "transformers_rollout.py", model, dtype, prompts, threads]
    elif engine == "vllm":
        python = environments.vllm()
        environment["LD_PRELOAD"] = ":".join(environments.vllm_preload(python))
        # Its environment's programs (ninja) must be found when it compiles.
        environment["PATH"] = f"{python.parent}:/usr/local/bin:/usr/bin:/bin"
        command = [python, HERE / "vllm_rollout.py", model, dtype, prompts, threads]
    else:
        command = [environments.llama_driver(), f"{model}.gguf", prompts, threads, NEW_TOKENS]
    return Process(engine, command, options.out / f"{engine}-{folder.name}-{dtype}.log", environment)


def read_once(folder, dtype):
    """Leaves the model's files in the page cache: whoever starts first would read them from the disk for all."""
    for path in [*(folder / f"policy-{dtype}").iterdir(), folder / f"policy-{dtype}.gguf"]:
        with path.open("rb") as file:
            while file.read(1 << 24):
                pass


def measure(size, dtype, prompts, options):
    """One line per engine: tokens per second of every run by batch, peak memory, seconds until ready."""
    folder = options.models_dir / size
    read_once(folder, dtype)
    processes, lines = [], []
    try:
        for engine in options.engines:
            process = start(engine, folder, dtype, prompts, options)
            processes.append(process)
            process.expect(START_DEADLINE)
            lines.append({"model": size, "dtype": dtype, "engine": engine, "startup_s": process.elapsed(), "rates": {b: [] for b in BATCHES}})
            process.freeze()
            print(f"bench:   {engine} ready after {process.elapsed():.1f} s", file=sys.stderr)
        for number in range(-1, options.runs):
            for batch in BATCHES:
                # In turns, beginning with another one each time: drift of the machine hits all alike.
                for place in range(len(processes)):
                    index = (place + number + 1) % len(processes)
                    rate = one_run(processes[index], batch)
                    # The first round warms up.
                    if number >= 0:
                        lines[index]["rates"][batch].append(rate)
        for process, line in zip(processes, lines):
            line["peak_mib"] = process.finish(END_DEADLINE)
            line["tokens_per_s"] = {str(batch): statistics.median(rates) for batch, rates in line["rates"].items()}
    finally:
        for process in processes:
            process.kill()
    return lines


def one_run(process, batch):
    process.thaw()
    answer = process.ask(str(batch), RUN_DEADLINE)
    process.freeze()
    if answer["tokens"] != batch * NEW_TOKENS:
        raise BenchError(f"{process.name} drew {answer['tokens']} tokens of {batch * NEW_TOKENS}: figures would not compare")
    return answer["tokens"] / answer["seconds"]
