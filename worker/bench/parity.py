#!/usr/bin/env python3
"""Saves the test models through the worker and compares what transformers reads of both: they must be the same model.

    python3 worker/bench/parity.py         # `make parity`; installs torch and transformers into the cache, 5 GB once
"""
import pathlib
import subprocess
import sys
import tempfile

import environments

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "worker/tests/fixtures"


def main():
    python = environments.torch()
    models = sorted(config.parent for config in FIXTURES.glob("*/config.json"))
    if not models:
        sys.exit(f"parity: no models in {FIXTURES}")
    build = ["cargo", "build", "--locked", "-p", "ppo-worker", "--example", "resave_model", "--message-format=short"]
    if subprocess.run(build, cwd=ROOT).returncode != 0:
        sys.exit("parity: the worker does not build; cargo's words are above")
    failed = []
    for model in models:
        with tempfile.TemporaryDirectory() as folder:
            saved = pathlib.Path(folder, "saved")
            resave = ["cargo", "run", "-q", "--locked", "-p", "ppo-worker", "--example", "resave_model", "--", model, saved]
            print(f"{model.name}: ", end="", flush=True)
            done = subprocess.run(resave, cwd=ROOT).returncode == 0
            done = done and subprocess.run([python, FIXTURES / "check_saved.py", model, saved]).returncode == 0
        if not done:
            failed.append(model.name)
    if failed:
        sys.exit(f"parity: {', '.join(failed)} failed")
    print(f"{len(models)} models are the same before and after")


if __name__ == "__main__":
    main()
