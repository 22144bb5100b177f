"""Make the models of the bench: random Llamas in Hugging Face layout with a byte-level tokenizer, for the policy and the reward.

usage: models.py OUT_DIR SIZE   (a Python with torch, transformers and gguf; see environments.py)
Writes OUT_DIR/{policy,reward}-{float32,bfloat16}/ and OUT_DIR/policy-{float32,bfloat16}.gguf. gpu.py makes its own of them.
"""
import pathlib
import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, PreTrainedTokenizerFast, Qwen2Config,
                          Qwen2ForCausalLM, Qwen2ForSequenceClassification)

SHAPES = {
    "3M": dict(num_hidden_layers=4, hidden_size=256, intermediate_size=688, num_attention_heads=4, num_key_value_heads=2, vocab_size=512),
    "135M": dict(num_hidden_layers=30, hidden_size=576, intermediate_size=1536, num_attention_heads=9, num_key_value_heads=3, vocab_size=49152),
    # The shape of Qwen2.5-1.5B.
    "1.5B": dict(num_hidden_layers=28, hidden_size=1536, intermediate_size=8960, num_attention_heads=12, num_key_value_heads=2, vocab_size=151936),
}
# Llamas but for these.
QWEN2 = {"1.5B"}


def byte_tokenizer():
    """Bytes are ids 0 to 255, then the specials: text becomes as many tokens as it has bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    specials = ["<pad>", "<eos>", "<bos>"]
    vocabulary = {piece: index for index, piece in enumerate(alphabet + specials)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=["input_ids", "attention_mask"],
                                   pad_token="<pad>", eos_token="<eos>", bos_token="<bos>")


def interleaved(weight, heads):
    """Rows of a query or key projection, from halves (Hugging Face) to pairs (the layout of llama.cpp's rotary embedding)."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)


def write_gguf(model, path, dtype):
    import gguf

    config, weights = model.config, model.state_dict()
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("none")

    def put(name, weight):
        # Vectors stay in float32: llama.cpp adds and scales in it.
        if weight.ndim == 1 or dtype == torch.float32:
            writer.add_tensor(name, weight.float().numpy())
        else:
            kind = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(name, gguf.quants.quantize(weight.float().numpy(), kind), raw_dtype=kind)

    put("token_embd.weight", weights["model.embed_tokens.weight"])
    put("output_norm.weight", weights["model.norm.weight"])
    names = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
             "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for layer in range(config.num_hidden_layers):
        for theirs, ours in names.items():
            weight = weights[f"model.layers.{layer}.{ours}.weight"]
            put(f"blk.{layer}.{theirs}.weight", interleaved(weight, heads[theirs]) if theirs in heads else weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def policy(size, tokenizer):
    """A random policy, the same on every call on the same device."""
    config, model = (Qwen2Config, Qwen2ForCausalLM) if size in QWEN2 else (LlamaConfig, LlamaForCausalLM)
    torch.manual_seed(0)
    return model(config(**common(size, tokenizer), tie_word_embeddings=True))


def reward(size, tokenizer):
    """A random reward model of the policy's shape."""
    config, model = (Qwen2Config, Qwen2ForSequenceClassification) if size in QWEN2 else (LlamaConfig, LlamaForSequenceClassification)
    return model(config(**common(size, tokenizer), num_labels=1))


def common(size, tokenizer):
    ids = dict(pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id, bos_token_id=tokenizer.bos_token_id)
    return dict(**SHAPES[size], **ids, max_position_embeddings=2048, rms_norm_eps=1e-5)


def save(model, tokenizer, folder, dtype):
    model.to(dtype).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main():
    out, size = pathlib.Path(sys.argv[1]), sys.argv[2]
    tokenizer = byte_tokenizer()
    actor, judge = policy(size, tokenizer), reward(size, tokenizer)
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        for role, model in (("policy", actor), ("reward", judge)):
            save(model, tokenizer, out / f"{role}-{name}", dtype)
        write_gguf(actor, out / f"policy-{name}.gguf", dtype)


if __name__ == "__main__":
    main()
