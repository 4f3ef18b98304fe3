from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine.conftest import CONTEXT, demo_path, finish, tiny_dir, two_threads

from ptd_engine import _core
from ptd_engine.config import PTDConfig, SamplingParams
from ptd_engine.drafters import make_drafter
from ptd_engine.engine import Engine, Generation
from ptd_engine.model import CausalLM, load_model
from ptd_engine.runner import EagerRunner, GraphRunner
from ptd_engine.testing.graph_recorder import opaque
from ptd_engine.testing.graph_twin import GraphTwin

__all__ = ["demo_path", "tiny_dir", "two_threads"]

KV_BUCKETS = (16, 40, CONTEXT)
NODE_BUCKETS = (1, 8, 20)
TREE = PTDConfig(width=3, depth=4, max_draft_nodes=9, max_candidate_nodes=10)
PROMPT = [5, 9, 11, 3, 9, 11, 3, 9]

Load = Callable[..., CausalLM]


@pytest.fixture(scope="session")
def load(tiny_dir: Callable[[str], Path]) -> Load:
    """A tiny model: its ops are torch's, or native ones that a recording sees as one call each."""
    loaded: dict[tuple[str, ...], CausalLM] = {}

    def get(kernels: str, dtype: str = "float32", family: str = "llama3") -> CausalLM:
        key = kernels, dtype, family
        if key not in loaded:
            directory = tiny_dir(family)
            loaded[key] = visible(
                load_model(directory, dtype=dtype, kernels=kernels, max_seq_len=CONTEXT)
            )
        return loaded[key]

    return get


def visible(model: CausalLM) -> CausalLM:
    """The model, with ops that a recording can see."""
    native = any(choice.backend == "cpu" for choice in model.ops.describe())
    return replace(model, ops=opaque(model.ops)) if native else model


def engine_of(
    model: CausalLM,
    drafter: str | PTDConfig | _core.Drafter = TREE,
    *,
    twin: GraphTwin | None = None,
    runner: type[GraphRunner] = GraphRunner,
    max_seq_len: int = CONTEXT,
    node_buckets: Sequence[int] = NODE_BUCKETS,
    kv_buckets: Sequence[int] = KV_BUCKETS,
    **settings: Any,
) -> Engine:
    """An engine whose steps are replayed by a twin of CUDA graphs."""
    made = make_drafter(drafter, device_type="cpu", eos_ids=())
    graphs = GraphTwin() if twin is None else twin
    built = runner(
        model,
        graphs,
        max_seq_len=max_seq_len,
        max_nodes=min(1 + made.needs().max_nodes, node_buckets[-1]),
        top_k=made.needs().top_k,
        node_buckets=node_buckets,
        kv_buckets=kv_buckets,
        **settings,
    )
    graphs.rewritten = lambda: built.memory.rewritten
    return Engine(built, made, max_seq_len=max_seq_len, vocab_size=model.config.vocab_size)


def eager_engine(
    model: CausalLM,
    drafter: str | PTDConfig | _core.Drafter = TREE,
    *,
    max_seq_len: int = CONTEXT,
    runner: type[EagerRunner] = EagerRunner,
    **settings: Any,
) -> Engine:
    """An engine whose steps run op by op, in the shapes of their plans."""
    made = make_drafter(drafter, device_type="cpu", eos_ids=())
    built = runner(
        model,
        max_seq_len=max_seq_len,
        max_nodes=1 + made.needs().max_nodes,
        top_k=made.needs().top_k,
        **settings,
    )
    return Engine(built, made, max_seq_len=max_seq_len, vocab_size=model.config.vocab_size)


def graphs_of(engine: Engine) -> GraphRunner:
    """The engine's runner."""
    assert isinstance(engine.runner, GraphRunner)
    return engine.runner


def run(
    engine: Engine, prompt: Sequence[int] = PROMPT, tokens: int = 16, **fields: Any
) -> Generation:
    """Generate to the end."""
    return finish(engine, prompt, SamplingParams(max_new_tokens=tokens, **fields))
