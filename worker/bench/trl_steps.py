"""TRL's PPOTrainer as a peer: seconds of each PPO step.
usage: trl_steps.py MODELS_DIR DTYPE PROMPTS.jsonl STEPS THREADS OUT_DIR [DEVICE BATCH NEW_TOKENS]

Policy, reference, reward and value model; batch 8, 3 epochs of one update; 64 new tokens and no stop token, so that every response has
the same length. Weights lie in DTYPE, the faster of TRL's two ways to bfloat16 (the other keeps float32 weights under autocast).
"""
import json
import os
import sys
import time

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer, TrainerCallback
from trl import PPOConfig, PPOTrainer
from workload import NEW_TOKENS, say

EPOCHS = 3


class Clock(TrainerCallback):
    def on_train_begin(self, *_, **__):
        self.began = time.perf_counter()

    def on_step_end(self, *_, **__):
        now = time.perf_counter()
        say(seconds=now - self.began)
        self.began = now


def main():
    models, dtype, prompts, steps, threads, out, *rest = sys.argv[1:]
    device, batch, new_tokens = (rest[0], *map(int, rest[1:])) if rest else ("cpu", 8, NEW_TOKENS)
    torch.set_num_threads(int(threads))
    # With cuDNN's attention TRL's padded prompts end generation in an assertion: probabilities are no numbers (torch 2.11, an H200).
    torch.backends.cuda.enable_cudnn_sdp(False)
    policy_dir, reward_dir = os.path.join(models, f"policy-{dtype}"), os.path.join(models, f"reward-{dtype}")
    tokenizer = AutoTokenizer.from_pretrained(policy_dir, padding_side="left")
    kind = getattr(torch, dtype)
    causal = lambda: AutoModelForCausalLM.from_pretrained(policy_dir, dtype=kind)
    scalar = lambda: AutoModelForSequenceClassification.from_pretrained(reward_dir, dtype=kind, num_labels=1)
    with open(prompts, encoding="utf-8") as lines:
        rows = [tokenizer(json.loads(line)["prompt"])["input_ids"] for line in lines]
    config = PPOConfig(output_dir=out, per_device_train_batch_size=batch, gradient_accumulation_steps=1, num_mini_batches=1,
                       num_ppo_epochs=EPOCHS, total_episodes=batch * int(steps), response_length=new_tokens, stop_token=None,
                       missing_eos_penalty=None, temperature=1.0, local_rollout_forward_batch_size=batch, learning_rate=1e-6,
                       num_sample_generations=0, save_strategy="no", logging_strategy="no", report_to=[], disable_tqdm=True,
                       use_cpu=device == "cpu", bf16=False, gradient_checkpointing=False, seed=0)
    trainer = PPOTrainer(args=config, processing_class=tokenizer, model=causal(), ref_model=causal(), reward_model=scalar(),
                         value_model=scalar(), train_dataset=Dataset.from_dict({"input_ids": rows}),
                         eval_dataset=Dataset.from_dict({"input_ids": rows[:batch]}), callbacks=[Clock()])
    say(ready=True)
    trainer.train()


main()
