"""Who takes part in `compare`: this engine and transformers, one call and one way to take times.

A contestant gets token ids and gives token ids, greedily, with the same stop ids. It is timed where
tokens reach its caller: *prefill* ends when the first step has given its tokens, *decode* is the
rest. Making the model and the tokenizer counts for nobody.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from bench.common import collector_off, ratio
from ptd_engine.checkpoint import Checkpoint
from ptd_engine.config import SamplingParams
from ptd_engine.errors import CheckpointError
from ptd_engine.llm import LLM


@dataclass(frozen=True)
class Timed:
    """One generation.

    Attributes:
        token_ids: the output, a stop id at its end included.
        first_s: seconds from the call until the first step's tokens were there.
        first_tokens: tokens of the first step.
        total_s: seconds from the call until the last token was there.
    """

    token_ids: list[int]
    first_s: float
    first_tokens: int
    total_s: float

    @property
    def decode_tokens(self) -> int:
        """Tokens after the first step."""
        return len(self.token_ids) - self.first_tokens

    @property
    def decode_s(self) -> float:
        """Seconds of the steps after the first."""
        return self.total_s - self.first_s

    @classmethod
    def merge_speed(cls, parts: Sequence[Timed]) -> float:
        """Decode tokens a second of several generations together; 0 if there were none."""
        return ratio(sum(p.decode_tokens for p in parts), sum(p.decode_s for p in parts))


class Contestant(Protocol):
    """What `compare` asks of everybody.

    Attributes:
        dtype: of the weights, as the table names it.
        details: further facts for the document.
        drafts: several tokens may come out of a step; its prefill is another contestant's.
    """

    dtype: str
    details: dict[str, Any]
    drafts: bool

    def generate(self, prompt: list[int], max_new_tokens: int) -> Timed:
        """Decode greedily until a stop id or `max_new_tokens`."""
        ...


class Ours:
    """This engine, with the drafter of `llm`."""

    def __init__(self, llm: LLM, dtype: str) -> None:
        self.dtype = dtype
        self.details: dict[str, Any] = {}
        self.drafts = llm.engine.drafter.needs().max_nodes > 0
        self._llm = llm

    def generate(self, prompt: list[int], max_new_tokens: int) -> Timed:
        """See `Contestant`."""
        with collector_off():
            start = time.perf_counter()
            generation = self._llm.engine.generate(
                prompt, SamplingParams(max_new_tokens=max_new_tokens)
            )
            steps = [(len(s.token_ids), time.perf_counter() - start) for s in generation]
        return Timed(generation.token_ids, steps[0][1], steps[0][0], steps[-1][1])


class Transformers:
    """transformers' `generate` on the tensors of a checkpoint: greedy, with its cache."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        device: torch.device,
        stop_ids: Sequence[int],
        vocab_limit: int | None = None,
    ) -> None:
        """Build the model of transformers.

        Raises:
            CheckpointError: a tensor that this model needs is not there, or of another shape.
        """
        from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig
        from transformers.utils import logging

        logging.disable_progress_bar()
        config = AutoConfig.for_model(**checkpoint.config)
        weights = {name: checkpoint.tensor(name) for name in checkpoint.names()}
        model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
        model, report = model_class.from_pretrained(
            None, config=config, state_dict=weights, dtype=dtype, output_loading_info=True
        )
        lacking = sorted(map(str, [*report["missing_keys"], *report["mismatched_keys"]]))
        if lacking:
            raise CheckpointError(
                f"{model_class.__name__} of transformers lacks {len(lacking)} tensors of this "
                f"checkpoint, for example {lacking[0]}: nothing can be compared."
            )
        self.dtype = str(dtype).removeprefix("torch.")
        self.details: dict[str, Any] = {
            "class": model_class.__name__,
            "attention": model.config._attn_implementation,
        }
        self.drafts = False
        self._lookup: int | None = None
        self._cache: str | None = None
        self._model: Any = model.to(device)
        self._device = device
        self._stop_ids = list(stop_ids)
        # Ids of the padded tail stand for no token; this engine never emits them either.
        size = self._model.config.vocab_size
        self._padding = list(range(size if vocab_limit is None else vocab_limit, size))

    def with_prompt_lookup(self, tokens: int = 10) -> Transformers:
        """The same model, decoding with drafts of up to `tokens` copied from prompt and output."""
        other = copy.copy(self)
        other.drafts, other._lookup = True, tokens
        other.details = {**self.details, "prompt_lookup_num_tokens": tokens}
        return other

    def with_static_cache(self) -> Transformers:
        """The same model with a cache of fixed size, for which transformers compiles the forward
        pass on a GPU.
        """
        other = copy.copy(self)
        other._cache = "static"
        other.details = {**self.details, "cache_implementation": "static"}
        return other

    def generate(self, prompt: list[int], max_new_tokens: int) -> Timed:
        """See `Contestant`."""
        from transformers import GenerationConfig

        settings = GenerationConfig(
            do_sample=False,
            max_new_tokens=max_new_tokens,
            use_cache=True,
            prompt_lookup_num_tokens=self._lookup,
            cache_implementation=self._cache,
            eos_token_id=self._stop_ids or None,
            suppress_tokens=self._padding or None,
            pad_token_id=0,  # never used with one sequence; without it generate() warns
        )
        arrivals = _Arrivals()
        with collector_off():
            start = time.perf_counter()
            ids = torch.tensor([prompt], device=self._device)
            output = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                generation_config=settings,
                streamer=arrivals,
            )
        times = [moment - start for moment in arrivals.moments[1:]]  # the first is the prompt
        first = arrivals.sizes[1]
        return Timed(output[0, len(prompt) :].tolist(), times[0], first, times[-1])


class _Arrivals:
    """A streamer that notes when tokens come; they are on the host by then."""

    def __init__(self) -> None:
        self.moments: list[float] = []
        self.sizes: list[int] = []

    def put(self, value: torch.Tensor) -> None:
        self.moments.append(time.perf_counter())
        self.sizes.append(value.numel())

    def end(self) -> None:
        """Nothing is held back."""
