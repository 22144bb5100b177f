#!/usr/bin/env python3
"""What it costs to be distributed: a PPO step over processes beside the same step in one, and two actor ranks beside one.

    python3 worker/bench/distributed.py     # needs target/release/ppo-worker (`make bench-distributed` builds it)

Models, prompts and the job are those of steps.py. One process, then an engine, a reference, a reward and an actor as their pods run
them, on the same cores and with the same number of threads; then the actor as two ranks that share those threads. All of it over
loopback, in turns. Prints Markdown: seconds of a step and of its stages, and the speed of the weights beside a plain copy through
a socket.
"""
import argparse
import contextlib
import json
import os
import pathlib
import random
import shutil
import socket
import statistics
import sys
import threading
import time

import environments
import run
import steps
from process import BenchError, Process, program

TOKEN = "the-token-of-the-bench"
# More than steps.py's: the first weights that an engine takes touch memory for the first time.
STEPS = {"3M": 12, "135M": 8}
COPY_BYTES, COPY_CHUNK = 1 << 30, 1 << 20


def free_port():
    """Below the range of outgoing connections, of which one could take it before the process that is to listen there does."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Job:
    """The job of one model in one precision, in a folder of its own."""

    def __init__(self, size, dtype, options):
        self.size, self.dtype, self.options = size, dtype, options
        self.work = options.out / f"distributed-{size}-{dtype}"
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        prompts = steps.write_prompts(options.models_dir / size, steps.STEPS[size])
        manifest = steps.manifest(options.models_dir / size, dtype, prompts, STEPS[size])
        (self.work / "job.yaml").write_text(json.dumps(manifest, indent=1))

    def worker(self, name, arguments, threads, environment=None, parse=lambda _: None):
        command = [self.options.binaries / "ppo-worker", "--threads", threads, *arguments]
        return Process(name, command, self.work / f"{name}.log", {"OMP_NUM_THREADS": str(threads), **(environment or {})}, parse)

    def one_process(self):
        """Stages of each step in one process. Leaves the RunConfig that the others need."""
        arguments = ["run", "-f", self.work / "job.yaml", "--run-dir", self.work / "one", "--json"]
        return measured([self.worker("one", arguments, self.options.threads, parse=steps.step_line)])

    def processes(self, ranks):
        """The same with every role in a process of its own, the actor as so many ranks."""
        config = json.loads((self.work / "one" / "run_config.json").read_text())
        config["checkpoint"]["path"] = str(self.work / f"ranks-{ranks}")
        (self.work / "run-config.json").write_text(json.dumps(config))
        ports = {role: free_port() for role in ("rollout", "reference", "reward", "actor")}
        environment = {"PPO_JOB": "bench", "PPO_ATTEMPT": "1", "PPO_TOKEN": TOKEN, "PPO_CONFIG": str(self.work / "run-config.json"),
                       "PPO_INDEX": "0", **{f"PPO_{role.upper()}_SERVICE": f"127.0.0.1:{port}" for role, port in ports.items()}}
        threads, servers = self.options.threads, []
        try:
            engine = ["rollout", "--host", "127.0.0.1", "--port", ports["rollout"], "--metrics-addr", "127.0.0.1:0"]
            servers.append(self.worker("rollout", engine, threads, {**environment, "PPO_ROLE": "rollout"}))
            for role in ("reference", "reward"):
                arguments = [role, "--listen", f"127.0.0.1:{ports[role]}", "--metrics-addr", "127.0.0.1:0"]
                servers.append(self.worker(role, arguments, threads, {**environment, "PPO_ROLE": role}))
            meeting = {**environment, "PPO_ROLE": "actor", "PPO_WORLD_SIZE": str(ranks), "PPO_RENDEZVOUS": f"127.0.0.1:{free_port()}"}
            actors = [self.worker(f"actor-{rank}",
                                  ["actor", "--metrics-addr", f"127.0.0.1:{ports['actor'] if rank == 0 else 0}", "--json"],
                                  max(1, threads // ranks), {**meeting, "PPO_INDEX": str(rank)}, steps.step_line) for rank in range(ranks)]
            return measured(actors)
        finally:
            for server in servers:
                server.kill()
            shutil.rmtree(self.work / f"ranks-{ranks}", ignore_errors=True)


def measured(processes):
    """Median seconds of a step and of its stages, as the first process reports them; the first step warms up."""
    try:
        found, last = {}, None
        while (answer := processes[0].answer(steps.START_DEADLINE + steps.STEP_DEADLINE)) is not None:
            now = time.perf_counter()
            if last is not None:
                for stage, seconds in [*answer["stages"].items(), ("step", now - last)]:
                    found.setdefault(stage, []).append(seconds)
            last = now
        for process in processes:
            process.finish(steps.END_DEADLINE)
    finally:
        for process in processes:
            process.kill()
    if "step" not in found:
        raise BenchError(f"{processes[0].name}: made no two steps; see {processes[0].log}")
    return {stage: statistics.median(seconds) for stage, seconds in found.items()}


def loopback_copy():
    """Bytes per second of a plain copy from memory to memory through a socket of this machine, the best of three."""
    def once():
        with socket.create_server(("127.0.0.1", 0)) as server:
            source = memoryview(bytearray(COPY_CHUNK))

            def send():
                with socket.create_connection(server.getsockname()) as out:
                    for _ in range(COPY_BYTES // COPY_CHUNK):
                        out.sendall(source)

            sender = threading.Thread(target=send)
            sender.start()
            incoming, _ = server.accept()
            target, began, left = memoryview(bytearray(COPY_CHUNK)), time.perf_counter(), COPY_BYTES
            with incoming:
                while left > 0:
                    read = incoming.recv_into(target)
                    if read == 0:
                        raise BenchError("the copy through a socket broke off")
                    left -= read
            sender.join()
            return COPY_BYTES / (time.perf_counter() - began)
    return max(once() for _ in range(3))


def policy_bytes(options, size, dtype):
    return sum(file.stat().st_size for file in (options.models_dir / size / f"policy-{dtype}").glob("*.safetensors"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=list(run.VOCABULARY), default=list(run.VOCABULARY))
    parser.add_argument("--dtypes", nargs="+", choices=["float32", "bfloat16"], default=["bfloat16"])
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1), help="threads of every process (default 2)")
    parser.add_argument("--binaries", type=pathlib.Path, default=run.ROOT / "target/release")
    parser.add_argument("--out", type=pathlib.Path, default=run.ROOT / "runs/bench")
    options = parser.parse_args()
    options.models_dir, options.out = environments.CACHE / "bench-models", options.out.resolve()
    if not (options.binaries / "ppo-worker").exists():
        sys.exit(f"bench: ppo-worker not found in {options.binaries}: `make bench-distributed` builds it first")
    run.make_models(options)
    print("| model | dtype | actor | step, s | beside one process | updates, s | weights to the engine, s | MiB/s | a copy's | of it |\n" + "|---" * 10 + "|")
    for size in options.models:
        for dtype in options.dtypes:
            job, one = Job(size, dtype, options), None
            for name, measure in [("one process", job.one_process), ("one rank", lambda: job.processes(1)), ("two ranks", lambda: job.processes(2))]:
                # Before and after: what a copy does depends on who else uses the memory.
                before = loopback_copy()
                line = measure()
                copy = (before + loopback_copy()) / 2
                one = one or line
                updates = line["update_actor"] + line.get("update_critic", 0.0)
                speed = policy_bytes(options, size, dtype) / line["publish"]
                print(f"| {size} | {dtype} | {name} | {line['step']:.2f} | {line['step'] / one['step']:.3f} | {updates:.2f} | {line['publish']:.3f} "
                      f"| {speed / 2**20:.0f} | {copy / 2**20:.0f} | {speed / copy:.2f} |", flush=True)
            shutil.rmtree(job.work, ignore_errors=True)


if __name__ == "__main__":
    program(main)
