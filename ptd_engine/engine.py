"""The main loop over token ids: plan, forward, commit. It joins algorithm and execution.

One engine serves one request at a time (batch 1 is the point); requests of other threads wait.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

from ptd_engine import _core
from ptd_engine.config import SamplingParams
from ptd_engine.errors import ConfigError, EngineError, PromptError
from ptd_engine.metrics import GenerationStats
from ptd_engine.outputs import FinishReason
from ptd_engine.runner import Runner


@dataclass(frozen=True, slots=True)
class StepTokens:
    """What one step added to the output.

    Attributes:
        token_ids: in order; never empty.
        accepted: how many of them, from the first on, were accepted candidates.
    """

    token_ids: list[int]
    accepted: int


class Engine:
    """Decodes token ids with a drafter over a runner.

    Attributes:
        drafter: proposes the trees; exchange it between requests as you like, as long as it needs
            no more rows than the runner was built for.
    """

    def __init__(
        self,
        runner: Runner,
        drafter: _core.Drafter,
        *,
        max_seq_len: int,
        vocab_size: int,
        eos_token_ids: Sequence[int] = (),
    ) -> None:
        self.runner = runner
        self.drafter = drafter
        self.max_seq_len = max_seq_len
        self.vocab_size = vocab_size
        self.eos_token_ids = tuple(eos_token_ids)
        self._gate = _Gate()

    def check_prompt(self, prompt: Sequence[int]) -> None:
        """Raise PromptError for a prompt that cannot be served."""
        if len(prompt) == 0:
            raise PromptError.for_field("prompt", prompt, "at least one token")
        if len(prompt) >= self.max_seq_len:
            raise PromptError(
                f"The prompt has {len(prompt)} tokens; the limit is {self.max_seq_len - 1} "
                f"(max_seq_len={self.max_seq_len}, one position is needed for the output). "
                "Shorten the prompt or load the model with a larger max_seq_len."
            )
        for index, token in enumerate(prompt):
            # numpy's integers count as integers, bool and float do not.
            if isinstance(token, bool) or not hasattr(token, "__index__"):
                raise PromptError.for_field(f"prompt[{index}]", token, "an integer token id")
            if not 0 <= token < self.vocab_size:
                raise PromptError.for_field(
                    f"prompt[{index}]", token, f"a token id from 0 to {self.vocab_size - 1}"
                )

    def generate(self, prompt: Sequence[int], params: SamplingParams) -> Generation:
        """Begin a request; iterate over the result to run it.

        Raises:
            PromptError: the prompt is empty, too long or holds ids outside the vocabulary.
        """
        self.check_prompt(prompt)
        if not isinstance(params, SamplingParams):
            raise ConfigError.for_field("params", params, "a SamplingParams object")
        return Generation(self, [int(token) for token in prompt], params)


class Generation:
    """One request: an iterator over its steps.

    The engine is taken at the first step and given back at the end, on an error, or on `close`.
    """

    def __init__(self, engine: Engine, prompt: list[int], params: SamplingParams) -> None:
        self._engine = engine
        self._prompt = prompt
        self._params = params
        self._session: _core.Session | None = None
        self._times = {"plan_time_s": 0.0, "forward_time_s": 0.0, "commit_time_s": 0.0}
        self._first_token_s = 0.0
        self._total_s = 0.0
        self._steps = self._run()

    def __iter__(self) -> Iterator[StepTokens]:
        return self

    def __next__(self) -> StepTokens:
        return next(self._steps)

    def close(self) -> None:
        """Cancel: the engine is free for the next request at once."""
        self._steps.close()

    @property
    def token_ids(self) -> list[int]:
        """The output so far."""
        return self._session.token_ids if self._session is not None else []

    @property
    def kv_len(self) -> int:
        """Committed cache rows: prompt + output - 1, for the last token has not been fed yet."""
        return self._session.kv_len if self._session is not None else 0

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the output ended; None while it has not."""
        reason = self._session.finish_reason if self._session is not None else ""
        return reason if reason in ("stop", "length") else None  # type: ignore[return-value]

    @property
    def stats(self) -> GenerationStats:
        """Counters and times so far."""
        if self._session is None:
            raise EngineError("The request has no statistics before its first step: iterate first.")
        return GenerationStats.from_counters(
            self._session.stats,
            time_to_first_token_s=self._first_token_s,
            total_time_s=self._total_s,
            **self._times,
        )

    def _make_session(self) -> _core.Session:
        engine, params, runner = self._engine, self._params, self._engine.runner
        stop_ids = list(params.stop_token_ids)
        if not params.ignore_eos:
            stop_ids += engine.eos_token_ids
        return _core.Session(
            self._prompt,
            engine.drafter,
            max_seq_len=engine.max_seq_len,
            max_new_tokens=params.max_new_tokens,
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            seed=params.seed,
            stop_ids=stop_ids,
            max_path=runner.max_path,
            output_top_k=runner.top_k,
            max_nodes=runner.max_nodes,
            vocab_size=engine.vocab_size,
            node_buckets=runner.node_buckets,
        )

    def _run(self) -> Generator[StepTokens, None, None]:
        gate = self._engine._gate
        with gate:
            start = time.perf_counter()
            session = self._session = self._make_session()
            if not session.finished:
                self._engine.runner.prefill(self._prompt[:-1], prompt_len=len(self._prompt))
            while not session.finished:
                step = self._step(session)
                # What the consumer does between two steps is not the engine's time.
                self._total_s += time.perf_counter() - start
                self._first_token_s = self._first_token_s or self._total_s
                yield step
                gate.taken_by_this_thread()
                start = time.perf_counter()

    def _step(self, session: _core.Session) -> StepTokens:
        runner, times = self._engine.runner, self._times
        t0 = time.perf_counter()
        bucket = session.plan(runner.staging)
        t1 = time.perf_counter()
        runner.launch(bucket)
        output = runner.wait()
        t2 = time.perf_counter()
        try:
            if self._params.verification == "recursive":
                tokens, accepted = session.commit_recursive(output, runner.probabilities())
            else:
                tokens, accepted = session.commit(output)
        except _core.NonFiniteLogits as error:
            raise EngineError(
                f"Generation failed at {error} Check the checkpoint, or load it in float32."
            ) from error
        t3 = time.perf_counter()
        times["plan_time_s"] += t1 - t0
        times["forward_time_s"] += t2 - t1
        times["commit_time_s"] += t3 - t2
        return StepTokens(tokens, accepted)


class _Gate:
    """One request at a time. Other threads wait; the same thread would for ever, so it errs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: int | None = None

    def taken_by_this_thread(self) -> None:
        """Note who reads the stream now: it may have moved to another thread."""
        self._owner = threading.get_ident()

    def __enter__(self) -> None:
        me = threading.get_ident()
        if self._owner == me and self._lock.locked():
            gc.collect()  # a stream that was dropped may still be held by a reference cycle
        if self._owner == me and self._lock.locked():
            raise EngineError(
                "The engine is busy with another generation of this thread (a stream that is not "
                "read to its end). Exhaust it or call its close() before the next request."
            )
        self._lock.acquire()
        self._owner = me

    def __exit__(self, *_: object) -> None:
        self._owner = None
        self._lock.release()
