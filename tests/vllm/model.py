# SPDX-License-Identifier: MIT
"""A tiny Llama model with random weights, which each run writes itself.

Its weights are large enough that each token depends on the whole prompt. Those of vLLM's
`--load-format dummy` are so small that the attention adds nothing to the sums, and tokens would be
equal whatever the KV cache holds.
"""

import json
import os

import torch
from safetensors.torch import save_file

VOCABULARY = 1000
LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD, INNER = 4, 128, 4, 2, 64, 256

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # Else the order of additions could decide between two tokens.
    "torch_dtype": "float32",
}


def weights():
    generator = torch.Generator().manual_seed(1)

    def matrix(rows, columns):
        return torch.randn(rows, columns, generator=generator) / columns**0.5

    tensors = {
        "model.embed_tokens.weight": matrix(VOCABULARY, HIDDEN) * HIDDEN**0.5,
        "model.norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": matrix(VOCABULARY, HIDDEN),
    }
    for layer in range(LAYERS):
        name = f"model.layers.{layer}."
        for part, rows, columns in (
            ("self_attn.q_proj", HEADS * HEAD, HIDDEN),
            ("self_attn.k_proj", KV_HEADS * HEAD, HIDDEN),
            ("self_attn.v_proj", KV_HEADS * HEAD, HIDDEN),
            ("self_attn.o_proj", HIDDEN, HEADS * HEAD),
            ("mlp.gate_proj", INNER, HIDDEN),
            ("mlp.up_proj", INNER, HIDDEN),
            ("mlp.down_proj", HIDDEN, INNER),
        ):
            tensors[f"{name}{part}.weight"] = matrix(rows, columns)
        for part in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{name}{part}.weight"] = torch.ones(HIDDEN)
    return tensors


def tokenizer():
    """A word a token: w0 to w999."""
    words = {f"w{i}": i for i in range(VOCABULARY)}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"},
    }


def write(folder):
    os.makedirs(folder)
    for name, content in (
        ("config.json", CONFIG),
        ("tokenizer.json", tokenizer()),
        ("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"}),
    ):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            json.dump(content, file)
    save_file(weights(), os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    return folder
