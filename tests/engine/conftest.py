from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from ptd_engine import _core, hub, text
from ptd_engine.config import PTDConfig, SamplingParams
from ptd_engine.drafters import make_drafter
from ptd_engine.engine import Engine, Generation
from ptd_engine.model import CausalLM, load_model
from ptd_engine.runner import EagerRunner
from ptd_engine.testing import tiny

CONTEXT = 128
PAPER_TREE = PTDConfig(width=4, depth=6)

MakeEngine = Callable[..., Engine]


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def directory(family: str) -> Path:
        if family not in made:
            made[family] = tiny.save(
                tiny.build(family, seed=3), tmp_path_factory.mktemp(family) / "model"
            )
        return made[family]

    return directory


def make_engine(
    model: CausalLM,
    drafter: str | PTDConfig | _core.Drafter = PAPER_TREE,
    *,
    max_seq_len: int = CONTEXT,
    eos: Sequence[int] = (),
    node_buckets: Sequence[int] = (),
    prefill_chunk: int = 512,
    reuse_prefix: bool = False,
) -> Engine:
    made = make_drafter(drafter, device_type="cpu", eos_ids=eos)
    runner = EagerRunner(
        model,
        max_seq_len=max_seq_len,
        max_nodes=1 + made.needs().max_nodes,
        top_k=made.needs().top_k,
        node_buckets=node_buckets,
        prefill_chunk=prefill_chunk,
    )
    return Engine(
        runner,
        made,
        max_seq_len=max_seq_len,
        vocab_size=model.config.vocab_size,
        eos_token_ids=eos,
        reuse_prefix=reuse_prefix,
    )


def finish(engine: Engine, prompt: Sequence[int], params: SamplingParams) -> Generation:
    """Run to the end, checking after every step what must hold there."""
    generation = engine.generate(prompt, params)
    emitted = 0
    for step in generation:
        emitted += len(step.token_ids)
        assert step.token_ids
        assert len(generation.token_ids) == emitted == generation.stats.tokens
        assert generation.kv_len == len(prompt) + emitted - 1
    assert generation.finish_reason in ("stop", "length")
    return generation


@pytest.fixture(scope="session")
def tiny_llama(tiny_dir: Callable[[str], Path]) -> CausalLM:
    return load_model(tiny_dir("llama3"), dtype="float32", max_seq_len=CONTEXT)


@pytest.fixture(scope="session")
def demo_path() -> Path:
    path = hub.cached_demo()
    if path is None:
        pytest.skip("the demo model is not in the cache: `make demo-model` fetches it")
    return path


@pytest.fixture(scope="session")
def demo_model(demo_path: Path) -> CausalLM:
    return load_model(demo_path, dtype="float32", max_seq_len=768)


@pytest.fixture(scope="session")
def demo_tokenizer(demo_path: Path) -> text.Tokenizer:
    return text.load_tokenizer(demo_path)


@pytest.fixture(autouse=True)
def two_threads() -> None:
    torch.set_num_threads(min(2, torch.get_num_threads()))
