"""`transformers` generate as a peer. usage: transformers_rollout.py MODEL_DIR DTYPE PROMPTS THREADS"""
import sys

import torch
from transformers import AutoModelForCausalLM
from workload import NEW_TOKENS, read_prompts, serve


def main():
    path, dtype, prompts, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype)).eval()
    prompts, pad = read_prompts(prompts), model.config.pad_token_id

    def generate(batch):
        chosen = prompts[:batch]
        width = max(map(len, chosen))
        ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in chosen])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in chosen])
        with torch.inference_mode():
            out = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS,
                                 do_sample=True, temperature=1.0, top_k=0, top_p=1.0)
        return batch * (out.shape[1] - width)

    serve(generate)


main()
