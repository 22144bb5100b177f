#!/usr/bin/env python3
"""Measure rollouts and PPO steps beside transformers, vLLM, llama.cpp and TRL, in one run on this machine.

    python3 worker/bench/run.py            # everything; needs target/release/{ppo-bench,ppo-worker} (`make bench` builds them)
    python3 worker/bench/run.py --models 3M --dtypes float32 --engines ours,transformers --skip-steps

The peers come from PyPI into environments of their own below ${XDG_CACHE_HOME:-~/.cache}/ppo (about 12 GB, once per machine).
Writes figures.json and figures.md into --out after every cell (rollout or steps of one model in one precision) and prints the Markdown.
Started again with the same --out it goes on: cells of the same machine, threads, runs and commit are kept (see cells.py).
"""
import argparse
import os
import pathlib
import subprocess
import sys

import cells
import environments
import report
import rollout
import steps
from process import program

ROOT = pathlib.Path(__file__).resolve().parents[2]
VOCABULARY = {"3M": 512, "135M": 49152}
ENGINES = ["ours", "transformers", "vllm", "llama"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    several = lambda choices: (lambda text: [choice(word, choices) for word in text.split(",")])
    parser.add_argument("--models", type=several(list(VOCABULARY)), default=list(VOCABULARY))
    parser.add_argument("--dtypes", type=several(["float32", "bfloat16"]), default=["float32", "bfloat16"])
    parser.add_argument("--engines", type=several(ENGINES), default=ENGINES)
    parser.add_argument("--runs", type=int, default=5, help="runs of each figure, after one to warm up (default 5)")
    parser.add_argument("--rounds", type=int, default=2, help="processes of each trainer, in turns (default 2)")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1), help="threads of every engine (default 2)")
    parser.add_argument("--skip-rollout", action="store_true")
    parser.add_argument("--skip-steps", action="store_true")
    parser.add_argument("--keep", action="store_true", help="keep cells of other commits too; the table says which commit each is of")
    parser.add_argument("--again", action="store_true", help="measure the chosen cells even if they are there")
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "target/release")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "runs/bench")
    options = parser.parse_args()
    options.models_dir = environments.CACHE / "bench-models"
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    return options


def choice(word, choices):
    if word not in choices:
        raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(choices)}")
    return word


def check_binaries(options):
    wanted = ([] if options.skip_rollout or "ours" not in options.engines else ["ppo-bench"]) + ([] if options.skip_steps else ["ppo-worker"])
    missing = [name for name in wanted if not (options.binaries / name).exists()]
    if missing:
        sys.exit(f"bench: {', '.join(missing)} not found in {options.binaries}: `make bench` builds them first")


def make_models(options):
    for size in options.models:
        folder = options.models_dir / size
        if not (folder / "complete").exists():
            subprocess.run([environments.torch(), pathlib.Path(__file__).with_name("models.py"), folder, size], check=True)
            (folder / "complete").touch()


def machine(options):
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        processor = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown processor")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**30
    return {"processor": processor, "threads": options.threads, "memory_gib": memory}


def main():
    options = arguments()
    check_binaries(options)
    make_models(options)
    figures = cells.Figures(options.out, machine(options), options.runs, keep_other_commits=options.keep)
    for size in options.models:
        prompts = rollout.write_prompts(options.models_dir, size, VOCABULARY[size])
        for dtype in options.dtypes:
            wanted = {}
            if not options.skip_rollout:
                wanted["rollout"] = lambda: rollout.measure(size, dtype, prompts, options)
            if not options.skip_steps:
                wanted["steps"] = lambda: steps.measure(size, dtype, options)
            for kind, measure in wanted.items():
                if figures.has(kind, size, dtype) and not options.again:
                    print(f"bench: {kind} {size} {dtype}: there already", file=sys.stderr)
                    continue
                print(f"bench: {kind} {size} {dtype} ...", file=sys.stderr)
                if os.getloadavg()[0] > 0.5:
                    print(f"bench: the machine is not idle (load {os.getloadavg()[0]:.1f}): figures may be low and uneven", file=sys.stderr)
                figures.add(kind, size, dtype, measure)
    print(report.markdown(figures.all))


if __name__ == "__main__":
    program(main)
