"""`engine`: step times of a model's shape with random weights, and the kernels of a layer."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from bench.random_model import random_model
from bench.step import prepare
from ptd_engine.model import CausalLM
from ptd_engine.runner import ModelRunner, make_runner

_REPEATS = {"cuda": 15, "cpu": 2}
_WARM_UPS = 2  # the first captures
_SHORT = 512  # of the context in which launches are counted
Row = dict[str, Any]


class StepBench:
    """Measures one shape; the model is made at the first call and freed by `close`."""

    def __init__(
        self,
        name: str,
        config: Mapping[str, Any],
        device: torch.device,
        longest: int,
        most_rows: int,
    ) -> None:
        self._name, self._config, self._device = name, config, device
        self._length, self._most_rows = longest + most_rows + 1, most_rows
        self._model: CausalLM | None = None
        self._runner: ModelRunner | None = None

    def steps(self, prefix: int, rows: Sequence[int]) -> Iterator[Row]:
        """Rows with `ms` (median, launch to result), `launch_us` (until the host is free again) and
        the bytes that a step has to read. The root's token must not depend on the rows.
        """
        model = self._loaded()
        if self._runner is None:
            graphs = "require" if self._device.type == "cuda" else "auto"
            self._runner = make_runner(
                model,
                graphs=graphs,  # type: ignore[arg-type]
                max_seq_len=self._length,
                max_nodes=self._most_rows,
            )
        runner, config = self._runner, model.config
        plans = prepare(runner, rows, prefix, config.vocab_size, seed=0)
        row_bytes = 2 * config.num_layers * config.num_kv_heads * config.head_dim
        read = model.weight_bytes + prefix * row_bytes * model.dtype.itemsize
        one_row = 0.0
        root: int | None = None
        for count in rows:
            block, bucket = plans[count]
            totals, launches = [], []
            for _ in range(_WARM_UPS + _REPEATS[self._device.type]):
                runner.staging[: block.size] = block
                begin = time.perf_counter()
                runner.launch(bucket)
                launched = time.perf_counter()
                output = runner.wait()
                totals.append(1e3 * (time.perf_counter() - begin))
                launches.append(1e6 * (launched - begin))
            token = int(output[0, 0])
            root = token if root is None else root
            ms = statistics.median(totals[_WARM_UPS:])
            one_row = one_row or ms
            yield {
                "model": self._name,
                "prefix": prefix,
                "rows": count,
                "bucket": bucket,
                "ms": ms,
                "ms_min": min(totals[_WARM_UPS:]),
                "launch_us": statistics.median(launches[_WARM_UPS:]),
                "to_one_row": ms / one_row,
                "bytes": read,
                "root_equal": token == root and token >= 0,
            }

    def launches(self) -> list[Row]:
        """Kernels of an eager step of one row by torch's profiler; none are to be seen on a CPU."""
        model = self._loaded()
        prefix = min(_SHORT, self._length - 2)
        runner = make_runner(model, graphs="off", max_seq_len=prefix + 2, max_nodes=1)
        block, bucket = prepare(runner, [1], prefix, model.config.vocab_size, seed=0)[1]
        runner.staging[: block.size] = block
        runner.launch(bucket)
        runner.wait()
        kernels = None if self._device.type != "cuda" else _profiled(runner, bucket)
        layers = model.config.num_layers
        return [
            {
                "model": self._name,
                "kernels_a_step": kernels,
                "kernels_a_layer": None if kernels is None else kernels / layers,
            }
        ]

    def close(self) -> None:
        """Free the memory for the next model."""
        self._model = self._runner = None
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _loaded(self) -> CausalLM:
        if self._model is None:
            self._model = random_model(self._config, self._device, max_seq_len=self._length)
        return self._model


def _profiled(runner: ModelRunner, bucket: int) -> int:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        runner.launch(bucket)
        runner.wait()
    names = [e.name for e in profiler.events() if str(e.device_type).endswith("CUDA")]
    return sum(1 for name in names if not name.startswith(("Memcpy", "Memset")))
