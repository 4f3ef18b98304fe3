"""GGUF tensor names <-> Hugging Face tensor names for the llama family."""

from __future__ import annotations

import re

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK = re.compile(r"blk\.(0|[1-9]\d{0,5})\.(\w+)\.(weight|bias)")

ROPE_FACTORS = "rope_freqs.weight"
"""Divisors of the rotary frequencies (llama3 scaling): part of the configuration, not a weight."""


def hf_name(gguf_name: str) -> str | None:
    """The Hugging Face name of a GGUF tensor, or None if the llama family has no such tensor."""
    if gguf_name in _TOP:
        return _TOP[gguf_name]
    match = _BLOCK.fullmatch(gguf_name)
    if match is None or match[2] not in _LAYER:
        return None
    return f"model.layers.{match[1]}.{_LAYER[match[2]]}.{match[3]}"
