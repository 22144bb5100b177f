#!/usr/bin/env python3
"""Measure the rollout engine on a GPU beside transformers and the memory bandwidth that bounds both, on this machine.

    python3 worker/bench/gpu.py            # needs target/release/{ppo-bench,libppo_cuda.so}: `cargo build --release -p ppo-worker
                                           # --bin ppo-bench` and `make cuda-shim`, here or on a machine with the same C library

Run it with a Python that has torch 2.11.0+cu130 and transformers: ppo-bench finds libtorch in that torch's `lib` folder (LD_LIBRARY_PATH is
set so, before the path that the binary was built with), and no Rust is needed. Random models in bfloat16, batches of equal prompts,
temperature 1 over the whole vocabulary, nothing ends a response early. The bound is what a decode step must read (all weights, and
keys and values of the middle of a response) over the bandwidth of a copy measured here.
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROMPT, NEW = 128, 256
SIZES, BATCHES = ("135M", "1.5B"), (1, 32, 256)


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
    """Folder of the random policy and the bytes that its decode step reads: (weights, keys and values of one token)."""
    import models

    shape = models.SHAPES[size]
    if not (folder / "config.json").is_file():
        print(f"gpu: making the random {size} model in {folder} ...", file=sys.stderr)
        tokenizer = models.byte_tokenizer()
        with torch.device("cuda"):
            policy = models.policy(size, tokenizer)
        models.save(policy.cpu(), tokenizer, folder, torch.bfloat16)
        del policy
        torch.cuda.empty_cache()
    weights = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    head = shape["hidden_size"] // shape["num_attention_heads"]
    return weights, 2 * 2 * shape["num_hidden_layers"] * shape["num_key_value_heads"] * head


def write_prompts(path, vocabulary):
    source = random.Random(1234)
    prompts = ([source.randrange(260, vocabulary) for _ in range(PROMPT)] for _ in range(max(BATCHES)))
    path.write_text("".join(" ".join(map(str, prompt)) + "\n" for prompt in prompts))


def ours(folder, prompts, torch, options):
    libraries = pathlib.Path(torch.__file__).parent / "lib"
    environment = {"LD_LIBRARY_PATH": f"{libraries}:{options.binaries}:{os.environ.get('LD_LIBRARY_PATH', '')}", "RUST_LOG": "info"}
    command = [options.binaries / "ppo-bench", "rollout", "--model", folder, "--dtype", "bfloat16", "--prompts", prompts, "--new-tokens", NEW,
               "--device", "cuda"]
    return command, environment


def theirs(folder, prompts, _torch, _options):
    return [sys.executable, HERE / "transformers_rollout.py", folder, "bfloat16", prompts, 4, "cuda", NEW], {}


def measure(name, command, environment, options, size):
    """Tokens per second by batch: the median of some runs after one to warm up."""
    from process import Process

    process = Process(name, command, options.out / f"gpu-{name}-{size}.log", environment)
    rates = {}
    try:
        process.expect(600)
        for batch in BATCHES:
            runs = [process.ask(str(batch), 300) for _ in range(options.runs + 1)]
            if any(run["tokens"] != batch * NEW for run in runs):
                raise RuntimeError(f"{name} drew another number of tokens than {batch * NEW}: figures would not compare")
            rates[batch] = statistics.median(run["tokens"] / run["seconds"] for run in runs[1:])
        process.finish(60)
    finally:
        process.kill()
    return rates


def row(cells):
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default=",".join(SIZES), help="models to measure (default all)")
    parser.add_argument("--engines", default="ours,transformers", help="engines to measure (default both)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each figure, after one to warm up (default 3)")
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "target/release")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "runs/bench")
    options = parser.parse_args()
    torch = gpu_or_end()
    options.out.mkdir(parents=True, exist_ok=True)
    if not (options.binaries / "ppo-bench").exists():
        sys.exit(f"gpu: there is no ppo-bench in {options.binaries}: `cargo build --release -p ppo-worker --bin ppo-bench` makes it")
    sys.path.insert(0, str(HERE))
    bandwidth = copy_bandwidth(torch)
    device = torch.cuda.get_device_name()
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip() or None
    figures = {"device": device, "copy_bytes_per_s": bandwidth, "commit": commit, "prompt": PROMPT, "new_tokens": NEW, "rates": []}
    lines = [f"{device}, a copy moves {bandwidth / 1e12:.2f} TB/s, bfloat16, prompts of {PROMPT} tokens, {NEW} new ones; tokens per second", "",
             row(["model", "batch", "ours", "transformers", "ours / transformers", "bound by bandwidth", "ours / bound"]), "|" + "---|" * 7]
    engines = {"ours": ours, "transformers": theirs}
    for size in options.sizes.split(","):
        folder = options.out / "gpu-models" / size
        weights, per_token = model(size, folder, torch)
        import models

        prompts = folder / "prompts.txt"
        write_prompts(prompts, models.SHAPES[size]["vocab_size"])
        rates = {name: measure(name, *engines[name](folder, prompts, torch, options), options, size) for name in options.engines.split(",")}
        for batch in BATCHES:
            bound = batch * bandwidth / (weights + batch * per_token * (PROMPT + NEW / 2))
            own, peer = (rates.get(name, {}).get(batch) for name in ("ours", "transformers"))
            figures["rates"].append({"model": size, "batch": batch, "ours": own, "transformers": peer, "bound": bound})
            lines.append(row([size, batch, f"{own:,.0f}" if own else "", f"{peer:,.0f}" if peer else "", f"{own / peer:.2f}" if own and peer else "",
                              f"{bound:,.0f}", f"{own / bound:.0%}" if own else ""]))
    (options.out / "gpu.json").write_text(json.dumps(figures, indent=2) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
