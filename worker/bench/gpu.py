#!/usr/bin/env python3
"""Measure the rollout engine and PPO steps on a GPU beside transformers, TRL and the memory bandwidth that bounds decoding, on this machine.

    python3 worker/bench/gpu.py            # needs target/release/{ppo-bench,ppo-worker,libppo_cuda.so}: `cargo build --release -p
                                           # ppo-worker --bins` and `make cuda-shim`, here or on a machine with an older C library

Run it with a Python that has torch 2.11.0+cu130, transformers 4.57 and, for steps, TRL 0.24: our programs find libtorch in that torch's
`lib` folder (LD_LIBRARY_PATH is set so, before the path that they were built with), and no Rust is needed. Random models in bfloat16.
Decoding: batches of equal prompts, temperature 1 over the whole vocabulary, nothing ends a response early; the bound is what a decode step
must read (all weights, and keys and values of the middle of a response) over the bandwidth of a copy measured here. Steps: those of
steps.py with more samples.
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys

import report
import steps
from process import BenchError, Process, bench_line, program

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROMPT, NEW = 128, 128
SIZES, BATCHES = ("135M", "1.5B"), (1, 32, 256)
# A run of the peer takes seconds at each batch: one is counted after one to warm up.
PEER_RUNS = 1
STEPS, WORK = 5, steps.Work(batch=32, new_tokens=128)


def gpu_or_end():
    try:
        import torch
    except ImportError:
        sys.exit("gpu: this Python has no torch: use one with torch 2.11.0+cu130")
    if not torch.cuda.is_available():
        sys.exit("gpu: torch sees no GPU on this machine: nothing was measured")
    if not torch.__version__.startswith("2.11.0"):
        sys.exit(f"gpu: the worker needs libtorch 2.11.0, this Python has torch {torch.__version__}")
    return torch


def copy_bandwidth(torch):
    """Bytes a second that a device-to-device copy reads and writes."""
    source = torch.empty(1 << 31, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    rates = []
    for _ in range(12):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        target.copy_(source)
        end.record()
        torch.cuda.synchronize()
        rates.append(2 * source.numel() / (begin.elapsed_time(end) / 1e3))
    del source, target
    torch.cuda.empty_cache()
    return statistics.median(rates[2:])


def model(size, folder, torch):
    """Makes random policy and reward model in a folder, once; bytes that a decode step reads: (weights, keys and values of one token)."""
    import models

    shape = models.SHAPES[size]
    for role, make in (("policy", models.policy), ("reward", models.reward)):
        place = folder / f"{role}-bfloat16"
        # The last file that is written.
        if (place / "tokenizer.json").is_file():
            continue
        print(f"gpu: making the random {role} of {size} in {place} ...", file=sys.stderr)
        tokenizer = models.byte_tokenizer()
        with torch.device("cuda"):
            made = make(size, tokenizer).to(torch.bfloat16)
        models.save(made.cpu(), tokenizer, place, torch.bfloat16)
        del made
        torch.cuda.empty_cache()
    weights = sum(path.stat().st_size for path in (folder / "policy-bfloat16").glob("*.safetensors"))
    head = shape["hidden_size"] // shape["num_attention_heads"]
    return weights, 2 * 2 * shape["num_hidden_layers"] * shape["num_key_value_heads"] * head


def write_prompts(path, vocabulary):
    source = random.Random(1234)
    prompts = ([source.randrange(260, vocabulary) for _ in range(PROMPT)] for _ in range(max(BATCHES)))
    path.write_text("".join(" ".join(map(str, prompt)) + "\n" for prompt in prompts))


def environment(torch, options):
    """Of our programs."""
    libraries = pathlib.Path(torch.__file__).parent / "lib"
    return {"LD_LIBRARY_PATH": f"{libraries}:{options.binaries}:{os.environ.get('LD_LIBRARY_PATH', '')}", "RUST_LOG": "info"}


def ours(folder, prompts, torch, options):
    command = [options.binaries / "ppo-bench", "rollout", "--model", folder, "--dtype", "bfloat16", "--prompts", prompts, "--new-tokens", NEW,
               "--device", "cuda"]
    return command, environment(torch, options), options.runs


def theirs(folder, prompts, _torch, _options):
    return [sys.executable, HERE / "transformers_rollout.py", folder, "bfloat16", prompts, 4, "cuda", NEW], {}, PEER_RUNS


def measure(name, command, environment, count, options, size):
    """Tokens per second by batch: the median of some runs after one to warm up."""
    process = Process(name, command, options.out / f"gpu-{name}-{size}.log", environment)
    rates = {}
    try:
        process.expect(600)
        for batch in BATCHES:
            runs = [process.ask(str(batch), 300) for _ in range(count + 1)]
            if any(run["tokens"] != batch * NEW for run in runs):
                raise BenchError(f"{name} drew another number of tokens than {batch * NEW}: figures would not compare")
            rates[batch] = statistics.median(run["tokens"] / run["seconds"] for run in runs[1:])
        process.finish(60)
    finally:
        process.kill()
    return rates


def step(trainer, size, folder, torch, options):
    """A line of steps.py: seconds of each step, and ours by stage."""
    place, prompts = steps.new_folder(options.out / f"gpu-steps-{trainer}-{size}"), steps.write_prompts(folder, STEPS, WORK)
    if trainer == "trl":
        command = [sys.executable, HERE / "trl_steps.py", folder, "bfloat16", prompts, STEPS, 4, place, "cuda", WORK.batch, WORK.new_tokens]
        process = Process(trainer, command, place / "log", steps.ENVIRONMENT, bench_line)
    else:
        job = steps.write_manifest(place, steps.manifest(folder, "bfloat16", prompts, STEPS, WORK))
        command = [options.binaries / "ppo-worker", "run", "-f", job, "--run-dir", place / "run", "--json", "--device", "cuda"]
        process = Process(trainer, command, place / "log", environment(torch, options), steps.step_line)
    line = {"model": size, "dtype": "bfloat16", "trainer": trainer, "seconds": [], "peak_mib": 0.0}
    try:
        steps.one_round(process, line, STEPS)
    finally:
        process.kill()
    line["median_s"] = statistics.median(line["seconds"])
    return line


def step_tables(lines):
    """Seconds of a step of both, and where ours go."""
    out = [row(["model", "TRL 0.24 s/step", "ours s/step", "faster"]), "|" + "---|" * 4]
    for size in dict.fromkeys(line["model"] for line in lines):
        own, peer = (next((line["median_s"] for line in lines if line["model"] == size and line["trainer"] == name), None) for name in ("ours", "trl"))
        out.append(row([size, f"{peer:.2f}" if peer else "", f"{own:.2f}" if own else "", f"{peer / own:.2f}x" if own and peer else ""]))
    return out + ["", report.stage_table(lines)]


def words(text):
    return [word for word in text.split(",") if word]


def row(cells):
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default=",".join(SIZES), help="models to measure (default all)")
    parser.add_argument("--engines", default="ours,transformers", help="engines to measure (default both)")
    parser.add_argument("--trainers", default="ours,trl", help="trainers to measure steps of (default both; empty: none)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each figure, after one to warm up (default 3)")
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "target/release")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "runs/bench")
    options = parser.parse_args()
    torch = gpu_or_end()
    options.out.mkdir(parents=True, exist_ok=True)
    for program in ("ppo-bench", "ppo-worker"):
        if not (options.binaries / program).exists():
            sys.exit(f"gpu: there is no {program} in {options.binaries}: `cargo build --release -p ppo-worker --bins` makes it")
    bandwidth = copy_bandwidth(torch)
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip() or None
    figures = {"device": torch.cuda.get_device_name(), "copy_bytes_per_s": bandwidth, "commit": commit, "prompt": PROMPT, "new_tokens": NEW,
               "rates": [], "steps": []}
    sizes = words(options.sizes)
    reads = {size: model(size, options.out / "gpu-models" / size, torch) for size in sizes}
    for size in sizes:
        figures["rates"] += decode_rates(size, reads[size], bandwidth, torch, options)
        tell(figures, options)
    # Ours first: a long run, of which what is known is written whatever becomes of the rest.
    for trainer in words(options.trainers):
        for size in sizes:
            figures["steps"] += filter(None, [unless_it_breaks(step, trainer, size, options.out / "gpu-models" / size, torch, options)])
            tell(figures, options)
    print(markdown(figures))


def decode_rates(size, reads, bandwidth, torch, options):
    """Of each batch: tokens per second of the engines, and what the bandwidth of the memory allows."""
    import models

    folder = options.out / "gpu-models" / size
    prompts = folder / "prompts.txt"
    write_prompts(prompts, models.SHAPES[size]["vocab_size"])
    engines = {"ours": ours, "transformers": theirs}
    rates = {name: unless_it_breaks(measure, name, *engines[name](folder / "policy-bfloat16", prompts, torch, options), options, size) or {}
             for name in words(options.engines)}
    weights, per_token = reads
    bound = lambda batch: batch * bandwidth / (weights + batch * per_token * (PROMPT + NEW / 2))
    return [{"model": size, "batch": batch, "ours": rates.get("ours", {}).get(batch), "transformers": rates.get("transformers", {}).get(batch),
             "bound": bound(batch)} for batch in BATCHES]


def unless_it_breaks(function, name, *arguments):
    """What it gives; of a peer that breaks off nothing, which is said."""
    try:
        return function(name, *arguments)
    except BenchError as error:
        if name == "ours":
            raise
        print(f"gpu: {error}", file=sys.stderr)
        return None


def markdown(figures):
    lines = [f"{figures['device']}, a copy moves {figures['copy_bytes_per_s'] / 1e12:.2f} TB/s, bfloat16, prompts of {PROMPT} tokens, {NEW} new ones; "
             "tokens per second", "",
             row(["model", "batch", "ours", "transformers", "ours / transformers", "bound by bandwidth", "ours / bound"]), "|" + "---|" * 7]
    for line in figures["rates"]:
        own, peer, bound = line["ours"], line["transformers"], line["bound"]
        lines.append(row([line["model"], line["batch"], f"{own:,.0f}" if own else "", f"{peer:,.0f}" if peer else "",
                          f"{own / peer:.2f}" if own and peer else "", f"{bound:,.0f}", f"{own / bound:.0%}" if own else ""]))
    if figures["steps"]:
        lines += ["", f"A PPO step of {WORK.batch} samples of {WORK.new_tokens} new tokens, 3 epochs:", "", *step_tables(figures["steps"])]
    return "\n".join(lines)


def tell(figures, options):
    (options.out / "gpu.json").write_text(json.dumps(figures, indent=2) + "\n")
    print(markdown(figures), file=sys.stderr, flush=True)


if __name__ == "__main__":
    program(main)
