"""`transformers` generate as a peer. usage: transformers_rollout.py MODEL_DIR DTYPE PROMPTS THREADS [DEVICE [NEW_TOKENS]]"""
import sys

import torch
from transformers import AutoModelForCausalLM
from workload import NEW_TOKENS, read_prompts, serve


def main():
    path, dtype, prompts, threads, *rest = sys.argv[1:]
    device = rest[0] if rest else "cpu"
    new_tokens = int(rest[1]) if len(rest) > 1 else NEW_TOKENS
    torch.set_num_threads(int(threads))
    model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype)).eval().to(device)
    prompts, pad = read_prompts(prompts), model.config.pad_token_id

    def generate(batch):
        chosen = prompts[:batch]
        width = max(map(len, chosen))
        ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in chosen], device=device)
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in chosen], device=device)
        with torch.inference_mode():
            out = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=new_tokens, min_new_tokens=new_tokens,
                                 do_sample=True, temperature=1.0, top_k=0, top_p=1.0)
            # A GPU is done when its answer is here.
            out = out.cpu()
        return batch * (out.shape[1] - width)

    serve(generate)


main()
