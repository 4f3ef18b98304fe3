"""A prompt of 32k tokens takes no more memory than was allocated before it came."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ptd_engine.model import load_model
from ptd_engine.runner import make_runner
from ptd_engine.testing import tiny

LENGTH = 32_768
CHUNK = 512


class Largest(TorchDispatchMode):
    """Keeps the bytes of the largest tensor that comes to be."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.nbytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        known = {a.untyped_storage().data_ptr() for a in args if isinstance(a, torch.Tensor)}
        for made in result if isinstance(result, tuple | list) else (result,):
            if isinstance(made, torch.Tensor) and made.untyped_storage().data_ptr() not in known:
                self.nbytes = max(self.nbytes, made.untyped_storage().nbytes())
        return result


@pytest.mark.slow
def test_a_prompt_of_32k_tokens_stays_within_the_memory_of_the_runner(tmp_path: Path) -> None:
    small = {"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    made = tiny.build("llama3", max_position_embeddings=LENGTH, head_dim=16, **small)
    path = tiny.save(made, tmp_path / "model")
    model = load_model(path, dtype="bfloat16", kernels="cpu", max_seq_len=LENGTH)
    runner = make_runner(model, max_seq_len=LENGTH, max_nodes=8)
    assert runner.prefill_chunk == CHUNK
    rows = runner.activations.max_rows
    assert rows == CHUNK
    prompt = [3 + i % 90 for i in range(LENGTH - 1)]
    with Largest() as largest:
        assert runner.prefill(prompt, prompt_len=LENGTH) == LENGTH - 1
    # The ids as they come from Python, in int64; a row of scores a token would be 64 times that.
    assert 0 < largest.nbytes <= 8 * LENGTH
    assert runner.cache.k[0, 0, : LENGTH - 1].abs().sum(-1).min() > 0
