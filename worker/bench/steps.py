"""Seconds of a PPO step: TRL's PPOTrainer and ours, on the same models and prompts, in turns."""
import json
import pathlib
import shutil
import statistics
import time
from dataclasses import dataclass

import environments
from process import Overdue, Process, bench_line
from workload import NEW_TOKENS, text_prompts

HERE = pathlib.Path(__file__).parent
EPOCHS = 3
START_DEADLINE, STEP_DEADLINE, END_DEADLINE = 300, 600, 300
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
# The first step of a process warms up and is not counted.
STEPS = {"3M": 11, "135M": 4}


@dataclass(frozen=True)
class Work:
    """Of a step: samples, and new tokens of each."""
    batch: int = 8
    new_tokens: int = NEW_TOKENS


def write_prompts(folder, steps, work=Work()):
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in text_prompts(work.batch * steps)))
    return path


def manifest(folder, dtype, prompts, steps, work=Work()):
    """The PpoJob that does what trl_steps.py does."""
    policy, reward = str(folder / f"policy-{dtype}"), str(folder / f"reward-{dtype}")
    return {
        "apiVersion": "ppojob.dev/v1alpha1",
        "kind": "PpoJob",
        "metadata": {"name": "bench"},
        "spec": {
            "model": {"policy": {"path": policy}, "dtype": dtype},
            "prompts": {"source": {"path": str(prompts)}, "promptField": "prompt", "chatTemplate": False, "maxLength": 64},
            "generation": {"maxNewTokens": work.new_tokens, "minNewTokens": work.new_tokens, "temperature": 1.0},
            "algorithm": {"profile": "trl"},
            "batch": {"rolloutBatchSize": work.batch, "nSamplesPerPrompt": 1, "trainBatchSize": work.batch, "microTrainBatchSize": work.batch,
                      "microRolloutBatchSize": work.batch, "ppoEpochs": EPOCHS},
            "optimizer": {"actorLearningRate": 1e-6, "criticLearningRate": 1e-6},
            "steps": steps,
            "roles": {"reward": {"model": {"source": {"path": reward}}}},
            "checkpoint": {"everySteps": 1_000_000},
        },
    }


def step_line(line):
    """A step of `ppo-worker run --json`."""
    try:
        parsed = json.loads(line)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) and "stages" in parsed else None


def start(trainer, size, dtype, prompts, options):
    folder, steps, threads = options.models_dir / size, STEPS[size], str(options.threads)
    place = new_folder(options.out / f"steps-{trainer}-{size}-{dtype}")
    environment = {**ENVIRONMENT, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    if trainer == "trl":
        command = [environments.torch(), HERE / "trl_steps.py", folder, dtype, prompts, steps, threads, place]
        return Process("trl", command, place / "log", environment, bench_line)
    job = write_manifest(place, manifest(folder, dtype, prompts, steps))
    command = [options.binaries / "ppo-worker", "--threads", threads, "run", "-f", job, "--run-dir", place / "run", "--json"]
    return Process("ours", command, place / "log", environment, step_line)


def new_folder(path):
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def write_manifest(folder, manifest):
    # JSON is YAML.
    (folder / "job.yaml").write_text(json.dumps(manifest, indent=1))
    return folder / "job.yaml"


def measure(size, dtype, options):
    """One line per trainer: seconds of each step as seen from here, our stages, peak memory. Of a peer whose step is not done within
    STEP_DEADLINE that is all that is said, as `over_s`: TRL in bfloat16 on processors that cannot multiply it."""
    prompts = write_prompts(options.models_dir / size, STEPS[size])
    lines = {trainer: {"model": size, "dtype": dtype, "trainer": trainer, "seconds": [], "peak_mib": 0.0} for trainer in ("trl", "ours")}
    for _ in range(options.rounds):
        for trainer, line in lines.items():
            if "over_s" in line:
                continue
            process = start(trainer, size, dtype, prompts, options)
            try:
                one_round(process, line)
            finally:
                process.kill()
                # Our checkpoint of the larger model takes gigabytes.
                shutil.rmtree(options.out / f"steps-{trainer}-{size}-{dtype}" / "run", ignore_errors=True)
    for line in lines.values():
        if "over_s" not in line:
            line["median_s"] = statistics.median(line["seconds"])
    return list(lines.values())


def one_round(process, line, steps=None):
    """Times from one report of a step to the next, with one clock for both trainers. With `steps` the process is left after so many: what
    it writes at its end may take a minute."""
    last, answer = None, process.answer(START_DEADLINE + STEP_DEADLINE)
    while answer is not None:
        if "ready" not in answer:
            now = time.perf_counter()
            if last is not None:
                line["seconds"].append(now - last)
                for stage, seconds in answer.get("stages", {}).items():
                    line.setdefault("stages", {}).setdefault(stage, []).append(seconds)
            last = now
        if steps is not None and len(line["seconds"]) == steps - 1:
            return
        try:
            answer = process.answer(STEP_DEADLINE)
        except Overdue:
            if process.name == "ours" or line["seconds"]:
                raise
            line["over_s"] = STEP_DEADLINE
            return
    line["peak_mib"] = max(line["peak_mib"], process.finish(END_DEADLINE))
