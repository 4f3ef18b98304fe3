"""`engine`: the demo model: drafted against plain output, tokens a second, transformers."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from bench.contestants import Timed, Transformers
from bench.random_model import RandomCheckpoint
from ptd_engine import demo_model
from ptd_engine.checkpoint import Checkpoint, open_checkpoint
from ptd_engine.config import SamplingParams
from ptd_engine.drafters import make_drafter
from ptd_engine.engine import Engine
from ptd_engine.errors import CheckpointError
from ptd_engine.metrics import GenerationStats
from ptd_engine.model import load_model
from ptd_engine.runner import GraphsMode, make_runner
from ptd_engine.text import load_tokenizer

_PLAIN, _DRAFTERS = "none", ("ptd:width=4,depth=6", "hybrid")
_QUESTIONS = (
    "List three uses of a hash table.",
    "Write a haiku about trees.",
    "Complete the following Python function:\ndef is_prime(n):",
)
_MOST_TOKENS, _FEW_TOKENS = 96, 6
_SEED = 7
Row = dict[str, Any]


def find_demo(path: Path | None, tiny: Mapping[str, Any] | None) -> Checkpoint:
    """The demo model where it is kept, or random weights of the shape `tiny`. Nothing is fetched.

    Raises:
        CheckpointError: it is not on this machine.
    """
    if tiny is not None:
        return RandomCheckpoint(tiny, torch.device("cpu"))
    found = demo_model.cached_path() if path is None else path
    if found is None:
        raise CheckpointError(
            f"the demo model ({demo_model.FILE_NAME}) is not in "
            f"{demo_model.cache_directory()}: name its file with --demo."
        )
    return open_checkpoint(found)


class DemoBench:
    """One model, several engines: by drafter, with and without graphs.

    Args:
        checkpoint: of the model.
        device: where it runs.
    """

    def __init__(self, checkpoint: Checkpoint, device: torch.device) -> None:
        self._checkpoint, self._device = checkpoint, device
        self._tiny = isinstance(checkpoint, RandomCheckpoint)
        self._tokens = _FEW_TOKENS if self._tiny else _MOST_TOKENS
        length, threads = (64, 1) if self._tiny else (1024, None)
        self._model = load_model(
            checkpoint, dtype="bfloat16", device=device, max_seq_len=length, num_threads=threads
        )
        self._length = length
        self._prompts, self._stop_ids, self._vocab = self._texts()
        on_gpu = device.type == "cuda"
        self._modes: Sequence[GraphsMode] = ("require", "off") if on_gpu else ("auto",)
        self._engines: dict[tuple[str, GraphsMode], Engine] = {}

    def verify(self) -> list[Row]:
        """Tokens of every drafter and way to run against plain decoding run in the same way, and of
        the ways against each other: greedy and sampled.
        """
        rows = []
        reference: dict[float, list[list[int]]] = {}
        for mode in self._modes:
            for temperature in (0.0, 0.8):
                plain = self._outputs(_PLAIN, mode, temperature)
                first = reference.setdefault(temperature, plain)
                for label in _DRAFTERS:
                    drafted = self._outputs(label, mode, temperature)
                    same = drafted == plain
                    rows.append(self._verified(label, mode, temperature, same, drafted, plain))
                same = plain == first
                rows.append(self._verified(_PLAIN, mode, temperature, same, plain, first))
        return rows

    def decode(self) -> list[Row]:
        """Tokens a second without prefill, graphs captured before; plan and commit by the step."""
        rows = []
        for label in (_PLAIN, *_DRAFTERS):
            for mode in self._modes if label == _PLAIN else self._modes[:1]:
                self._outputs(label, mode, 0.0)
                parts = [self._generate(label, mode, 0.0, prompt)[1] for prompt in self._prompts]
                stats = GenerationStats.merge(parts)
                host = stats.plan_time_s + stats.commit_time_s
                rows.append(
                    {
                        "engine": label.partition(":")[0],
                        "graphs": mode,
                        "tokens_per_second": stats.tokens / stats.decode_time_s,
                        "ms_a_step": 1e3 * stats.decode_time_s / stats.steps,
                        "tokens_a_step": stats.decoding_efficiency,
                        "host_us": 1e6 * host / stats.steps,
                        "graph_steps": stats.graph_steps,
                        "graph_captures": stats.graph_captures,
                        "graph_fallbacks": stats.graph_fallbacks,
                        "host_syncs_a_step": stats.host_syncs / stats.steps,
                    }
                )
        return rows

    def transformers(self) -> list[Row]:
        """transformers' generate: eager, and with a static cache, which it compiles on a GPU."""
        eager = Transformers(
            self._checkpoint, torch.bfloat16, self._device, self._stop_ids, self._vocab
        )
        ours = [self._generate(_PLAIN, self._modes[0], 0.0, p)[0] for p in self._prompts]
        rows = []
        for label, one in (("eager", eager), ("static cache", eager.with_static_cache())):
            one.generate(self._prompts[0], self._tokens)
            timed = [one.generate(prompt, self._tokens) for prompt in self._prompts]
            equal = sum(t.token_ids == own for t, own in zip(timed, ours, strict=True))
            rows.append(
                {
                    "engine": f"transformers, {label}",
                    "graphs": "",
                    "tokens_per_second": Timed.merge_speed(timed),
                    "tokens_a_step": 1.0,
                    "host_us": 0.0,
                    "equal_outputs": equal,
                    "prompts": len(timed),
                }
            )
        return rows

    def _verified(
        self,
        label: str,
        mode: GraphsMode,
        temperature: float,
        same: bool,
        got: list[list[int]],
        expected: list[list[int]],
    ) -> Row:
        parted = next(
            (i for i, (a, b) in enumerate(zip(got, expected, strict=True)) if a != b), None
        )
        return {
            "drafter": label,
            "graphs": mode,
            "temperature": temperature,
            "prompts": len(expected),
            "tokens": sum(map(len, expected)),
            "identical": same,
            "first_prompt_that_differs": parted,
        }

    def _texts(self) -> tuple[list[list[int]], list[int], int]:
        """Prompts as ids, stop ids, and the ids that stand for tokens."""
        vocab, eos = self._model.config.vocab_size, self._model.config.eos_token_ids
        path = getattr(self._checkpoint, "path", None)
        if self._tiny or path is None:
            draw = random.Random(0)
            return [[draw.randrange(vocab) for _ in range(8)] for _ in range(2)], [], vocab
        tokenizer = load_tokenizer(Path(path))
        prompts = [
            tokenizer.apply_chat_template([{"role": "user", "content": text}])
            for text in _QUESTIONS
        ]
        stop = sorted({*eos, *tokenizer.eos_token_ids})
        return prompts, stop, min(vocab, tokenizer.vocab_size)

    def _engine(self, label: str, mode: GraphsMode) -> Engine:
        made = self._engines.get((label, mode))
        if made is None:
            drafter = make_drafter(label, device_type=self._device.type, eos_ids=self._stop_ids)
            needs = drafter.needs()
            runner = make_runner(
                self._model,
                graphs=mode,
                max_seq_len=self._length,
                max_nodes=1 + needs.max_nodes,
                top_k=needs.top_k,
                vocab_limit=self._vocab,
            )
            made = self._engines[label, mode] = Engine(
                runner,
                drafter,
                max_seq_len=self._length,
                vocab_size=self._vocab,
                eos_token_ids=self._stop_ids,
            )
        return made

    def _outputs(self, label: str, mode: GraphsMode, temperature: float) -> list[list[int]]:
        return [self._generate(label, mode, temperature, p)[0] for p in self._prompts]

    def _generate(
        self, label: str, mode: GraphsMode, temperature: float, prompt: list[int]
    ) -> tuple[list[int], GenerationStats]:
        params = SamplingParams(max_new_tokens=self._tokens, temperature=temperature, seed=_SEED)
        generation = self._engine(label, mode).generate(prompt, params)
        for _ in generation:
            pass
        return generation.token_ids, generation.stats
