#!/usr/bin/env python3
"""What HTTP costs: the rollout engine through its server and the trainer's client, over loopback, beside the engine alone.

    python3 worker/bench/http_cost.py       # needs target/release/ppo-bench (`make bench-http` builds it)

Models and prompts are those of run.py. Prints a Markdown table: tokens per second of both, medians in turns, and their ratio.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys

import environments
import rollout
import run

BATCHES = "8,32"
# A batch of the small model takes 30 ms: fewer runs would show the machine's moods.
RUNS = {"3M": 99, "135M": 9}
DEADLINE = 600


def measure(options, size, dtype):
    prompts = rollout.write_prompts(options.models_dir, size, run.VOCABULARY[size])
    command = [options.binaries / "ppo-bench", "http", "--model", options.models_dir / size / f"policy-{dtype}", "--dtype", dtype,
               "--prompts", prompts, "--batch", BATCHES, "--runs", str(options.runs or RUNS[size]), "--threads", str(options.threads)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=DEADLINE, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=list(run.VOCABULARY), default=list(run.VOCABULARY))
    parser.add_argument("--dtypes", nargs="+", choices=["float32", "bfloat16"], default=["float32"])
    parser.add_argument("--runs", type=int, help="runs of each figure, after one to warm up (default 99 of the 3M, 9 of the 135M)")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1), help="threads of the engine (default 2)")
    parser.add_argument("--binaries", type=pathlib.Path, default=run.ROOT / "target/release")
    options = parser.parse_args()
    options.models_dir = environments.CACHE / "bench-models"
    if not (options.binaries / "ppo-bench").exists():
        sys.exit(f"bench: ppo-bench not found in {options.binaries}: `make bench-http` builds it first")
    run.make_models(options)
    print("| model | dtype | batch | engine alone, tok/s | through HTTP, tok/s | ratio |\n|---|---|---|---|---|---|")
    for size in options.models:
        for dtype in options.dtypes:
            for line in measure(options, size, dtype):
                alone, through = line["in_process_tokens_per_s"], line["http_tokens_per_s"]
                print(f"| {size} | {dtype} | {line['batch']} | {alone:.0f} | {through:.0f} | {line['ratio']:.3f} |", flush=True)


if __name__ == "__main__":
    main()
