"""The CPU kernels outside the straight path: calls that end early, settings and shapes at the edge,
ops and models that do not belong together.
"""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest
import torch

from ptd_engine import _core
from ptd_engine.errors import ConfigError
from ptd_engine.kernels import Ops, select_ops
from ptd_engine.model import load_model
from ptd_engine.testing import tiny

ISAS = tuple(name for name, reason in _core.cpu_isas().items() if not reason)


def works(ops: Ops) -> bool:
    """Whether an op runs when it is called, here and on another thread."""
    results: list[float] = []

    def call() -> None:
        out = torch.zeros(1, 4)
        ops.silu_mul(torch.full((1, 8), 20.0), out)
        results.append(float(out[0, 0]))

    call()
    other = threading.Thread(target=call, daemon=True)
    other.start()
    other.join(30)
    return results == [400.0, 400.0]


def test_a_recording_that_fails_leaves_nothing_behind() -> None:
    ops = select_ops("cpu", num_threads=2)
    assert ops.record is not None

    def fails() -> None:
        ops.silu_mul(torch.ones(1, 8), torch.zeros(1, 4))
        raise KeyError("halfway")

    with pytest.raises(KeyError, match="halfway"):
        ops.record(fails)
    assert works(ops)


def test_an_interrupt_while_another_thread_records_leaves_nothing_behind() -> None:
    ops = select_ops("cpu", num_threads=2)
    record = ops.record
    assert record is not None
    recording, finish = threading.Event(), threading.Event()

    def hold() -> None:
        recording.set()
        finish.wait()

    def interrupt() -> None:
        recording.wait()
        # The main thread is at the executor's door by now, or just about to be.
        threading.Event().wait(0.2)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        finish.set()

    threads = [
        threading.Thread(target=lambda: record(hold), daemon=True),
        threading.Thread(target=interrupt, daemon=True),
    ]

    def record_second() -> None:
        threads[0].start()
        recording.wait()
        threads[1].start()
        record(lambda: None)
        threading.Event().wait(30)

    with pytest.raises(KeyboardInterrupt):
        record_second()
    for thread in threads:
        thread.join(30)
    assert works(ops)


@pytest.mark.parametrize("threads", [1025, 10**6])
def test_too_many_threads_are_refused(threads: int) -> None:
    with pytest.raises(ConfigError, match=f"num_threads={threads}.*1 to 1024"):
        select_ops("cpu", num_threads=threads)


def test_more_threads_than_processors_or_work() -> None:
    assert works(select_ops("cpu", num_threads=19))


def test_ops_for_another_dtype_than_the_models_are_refused(tmp_path: Path) -> None:
    path = tiny.save(tiny.build("llama3"), tmp_path / "model")
    for made, used in (("float32", "bfloat16"), ("float32", "float16"), ("bfloat16", "float32")):
        ops = select_ops("cpu", dtype=getattr(torch, made))
        with pytest.raises(ConfigError, match=rf"CPU kernels for torch\.{made}.*torch\.{used}"):
            load_model(path, dtype=used, kernels=ops)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("heads", [17, 20, 34])
def test_many_heads_on_one_key_value_head(heads: int, isa: str, dtype: torch.dtype) -> None:
    rows, prefix, dim = 5, 300, 48
    generator = torch.Generator().manual_seed(heads)
    q = torch.randn(rows, heads, dim, generator=generator).to(dtype)
    keys = torch.randn(1, prefix + rows, dim, generator=generator).to(dtype)
    values = torch.randn(1, prefix + rows, dim, generator=generator).to(dtype)
    length = torch.tensor([prefix], dtype=torch.int32)
    outs = []
    for name in (f"cpu:{isa}", "torch"):
        ops = select_ops(name, dtype=dtype, head_dim=dim, num_threads=2)
        outs.append(torch.full((rows, heads * dim), float("nan"), dtype=dtype))
        ops.causal_attention(q, keys, values, length, prefix + rows, dim**-0.5, outs[-1])
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(outs[0], outs[1], rtol=0, atol=tolerance)


def test_many_heads_on_each_of_several_key_value_heads_are_refused() -> None:
    ops = select_ops("cpu", num_threads=1, head_dim=16)
    q, cache = torch.zeros(1, 34, 16), torch.zeros(2, 8, 16)
    out, length = torch.zeros(1, 34 * 16), torch.zeros(1, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"num_attention_heads=34.*up to 16.*kernels='torch'"):
        ops.causal_attention(q, cache, cache, length, 1, 0.25, out)
