#!/usr/bin/env python3
"""Saves the test models and the test adapter through the worker and compares what transformers and PEFT read: the same models.

    python3 worker/bench/parity.py         # `make parity`; installs torch, transformers and PEFT into the cache, 5 GB once
"""
import os
import pathlib
import subprocess
import sys
import tempfile

import environments

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "worker/tests/fixtures"


def works(command, **options):
    return subprocess.run([str(part) for part in command], **options).returncode == 0


def example(name, *arguments):
    return works(["cargo", "run", "-q", "--locked", "-p", "ppo-worker", "--example", name, "--", *arguments], cwd=ROOT)


def main():
    python = environments.torch()
    models = sorted(config.parent for config in FIXTURES.glob("*/config.json"))
    if not models:
        sys.exit(f"parity: no models in {FIXTURES}")
    examples = ["--example", "resave_model", "--example", "resave_adapter"]
    if not works(["cargo", "build", "--locked", "-p", "ppo-worker", *examples, "--message-format=short"], cwd=ROOT):
        sys.exit("parity: the worker does not build; cargo's words are above")
    failed = []
    for model in models:
        with tempfile.TemporaryDirectory() as folder:
            saved = pathlib.Path(folder, "saved")
            print(f"{model.name}: ", end="", flush=True)
            if not (example("resave_model", model, saved) and works([python, FIXTURES / "check_saved.py", model, saved])):
                failed.append(model.name)
    base, adapter = FIXTURES / "qwen2", FIXTURES / "adapter"
    with_peft = {**os.environ, "PYTHONPATH": str(environments.peft())}
    with tempfile.TemporaryDirectory() as folder:
        print("adapter: ", end="", flush=True)
        check = [python, FIXTURES / "check_adapter.py", base, adapter, folder]
        if not (example("resave_adapter", base, adapter, folder) and works(check, env=with_peft)):
            failed.append(adapter.name)
    if failed:
        sys.exit(f"parity: {', '.join(failed)} failed")
    print(f"{len(models)} models and an adapter are the same before and after")


if __name__ == "__main__":
    main()
