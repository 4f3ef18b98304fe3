"""Llama- and Qwen-shaped decoders: configuration, weights, rotary embedding, forward pass."""

from ptd_engine.model.config import ModelConfig
from ptd_engine.model.forward import CausalLM, ForwardBuffers
from ptd_engine.model.rope import RopeTable
from ptd_engine.model.rope_config import RopeConfig
from ptd_engine.model.weights import load_model

__all__ = [
    "CausalLM",
    "ForwardBuffers",
    "ModelConfig",
    "RopeConfig",
    "RopeTable",
    "load_model",
]
