"""The main loop of one request: plan, forward, commit. It joins algorithm and execution."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ptd_engine import _core
from ptd_engine.config import ResolvedParams
from ptd_engine.errors import EngineError
from ptd_engine.metrics import GenerationStats
from ptd_engine.outputs import FinishReason, StepTree, TokenLogprobs
from ptd_engine.runner import LogitRules, Runner, StepCounts


class Host(Protocol):
    """What a request needs of the engine that runs it.

    Attributes:
        runner, drafter, max_seq_len, vocab_size, eos_token_ids: as of `Engine`; the drafter may be
            another one at the first step than when the request was made.
    """

    runner: Runner
    drafter: _core.Drafter
    max_seq_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]

    def enter(self, cancelled: Callable[[], bool]) -> bool:
        """Wait until it is free; false if the request was cancelled meanwhile."""
        ...

    def passed_on(self) -> None:
        """The request is read by this thread from now on."""
        ...

    def leave(self, in_place: list[int] | None) -> None:
        """Free it. in_place: the tokens of the cache rows from 0 on; None: they are as before."""
        ...

    def reusable(self, prompt: Sequence[int]) -> int:
        """How many rows of the cache are those of this prompt; its last token is never one."""
        ...


@dataclass(frozen=True, slots=True)
class StepTokens:
    """What one step added to the output.

    Attributes:
        token_ids: in order; never empty.
        accepted: how many of them, from the first on, were accepted candidates.
        logprobs: one entry a token; None where the request did not ask for them.
    """

    token_ids: list[int]
    accepted: int
    logprobs: list[TokenLogprobs] | None = None


class Generation:
    """One request: an iterator over its steps.

    The engine is taken at the first step and given back with the last one, on an error, on `close`,
    and when the object is dropped. `close` may come from any thread; everything else belongs to the
    thread that iterates.

    Attributes:
        params: what it is decoded by.
    """

    def __init__(
        self,
        host: Host,
        prompt: list[int],
        params: ResolvedParams,
        stop_check: Callable[[int], bool] | None,
    ) -> None:
        self._host = host
        self._prompt = prompt
        self.params = params
        self._stop_check = stop_check
        self._session: _core.Session | None = None
        self._rules: LogitRules | None = None
        self._times = {"plan_time_s": 0.0, "forward_time_s": 0.0, "commit_time_s": 0.0}
        self._first_token_s = 0.0
        self._total_s = 0.0
        self._reused = 0
        self._counts = StepCounts()  # of this request's steps
        self._in_place: int | None = None  # cache rows that hold this text; None: not touched yet
        self._turn = threading.Lock()  # held while a step runs, and to give the engine back
        self._has_engine = False
        self._closed = False

    def __iter__(self) -> Iterator[StepTokens]:
        return self

    def __next__(self) -> StepTokens:
        if not self._turn.acquire(blocking=False):
            if self._closed:
                raise StopIteration
            raise EngineError("This generation is at a step already: read it from one place.")
        try:
            step = self._advance()
        except BaseException as error:
            self._closed = True
            self._give_back()
            if isinstance(error, StopIteration):  # a user's own, which would end a `for` in silence
                raise EngineError(
                    "A function of the request (logits_processor, stop check, drafter) raised "
                    "StopIteration, which would look like the end of the output: an iterator that "
                    "it reads by next() is exhausted. Give next() a default."
                ) from error
            raise
        finally:
            self._turn.release()
        # Also if `close` came during the step: whoever comes last gives the engine back.
        if step is None or self._closed or self.finish_reason is not None:
            self.close()
        if step is None:
            raise StopIteration
        return step

    def close(self) -> None:
        """Cancel, from any thread: the engine is free at once, or after the step that is running
        (of a prefill, the part that is).

        That step is still handed out; then the iteration ends.
        """
        self._closed = True
        if self._turn.acquire(blocking=False):
            try:
                self._give_back()
            finally:
                self._turn.release()

    def __del__(self) -> None:
        self.close()

    @property
    def token_ids(self) -> list[int]:
        """The output so far."""
        return self._session.token_ids if self._session is not None else []

    @property
    def kv_len(self) -> int:
        """Committed cache rows: prompt + output - 1, for the last token has not been fed yet."""
        return self._session.kv_len if self._session is not None else 0

    @property
    def tree(self) -> StepTree | None:
        """What the last step looked at; None before the first."""
        if self._session is None or not self._session.stats["steps"]:
            return None
        tree = self._session.tree
        return StepTree(tree.tokens, tree.parents, tree.n_verify, self._session.accepted_rows)

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
            execution=asdict(self._counts),
            reused_tokens=self._reused,
            **self._times,
        )

    def _make_session(self) -> _core.Session:
        host, params, runner = self._host, self.params, self._host.runner
        budget = params.max_new_tokens
        return _core.Session(
            self._prompt,
            host.drafter,
            max_seq_len=host.max_seq_len,
            max_new_tokens=host.max_seq_len if budget is None else budget,
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            seed=params.seed,
            stop_ids=self._stop_ids(),
            stop_check=self._stop_check,
            max_path=runner.max_path,
            output_top_k=runner.top_k,
            max_nodes=runner.max_nodes,
            vocab_size=host.vocab_size,
            node_buckets=runner.node_buckets,
        )

    def _stop_ids(self) -> list[int]:
        eos = () if self.params.ignore_eos else self._host.eos_token_ids
        return [*self.params.stop_token_ids, *eos]

    def _logit_rules(self) -> LogitRules | None:
        """What the request asks of its logits; None if that is nothing."""
        params = self.params
        forbidden = [i for i in self._stop_ids() if i < self._host.vocab_size]
        rules = LogitRules(
            prompt=self._prompt,
            repetition_penalty=params.repetition_penalty,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            logit_bias=params.logit_bias or {},
            forbidden_ids=forbidden if params.min_new_tokens > 0 else (),
            min_new_tokens=params.min_new_tokens,
            logprobs=params.logprobs,
            row_by_row=params.logits_processor is not None,
        )
        return rules if rules.active else None

    def _advance(self) -> StepTokens | None:
        """The next step; None at the end of the output and for a request that was cancelled."""
        if self._closed or self.finish_reason is not None:
            return None
        if self._session is None:
            self._start()
        else:
            self._host.passed_on()
        session = self._session
        if session is None or session.finished or self._closed:
            return None
        start = time.perf_counter()
        step = self._step(session)
        self._total_s += time.perf_counter() - start
        self._first_token_s = self._first_token_s or self._total_s
        return step

    def _start(self) -> None:
        """Take the engine, begin the session, run the prompt; nothing if cancelled meanwhile."""
        if not self._host.enter(lambda: self._closed):
            return
        self._has_engine = True
        start = time.perf_counter()
        session = self._session = self._make_session()
        if not session.finished:
            self._rules = self._logit_rules()
            self._host.runner.begin(self._rules)
            self._counts = self._host.runner.counts
            self._prefill(session)
        self._total_s = time.perf_counter() - start

    def _prefill(self, session: _core.Session) -> None:
        prompt, last = self._prompt, len(self._prompt) - 1
        self._reused = self._in_place = self._host.reusable(prompt)
        wanted = self._host.drafter.needs().prompt_outputs
        self._in_place = self._host.runner.prefill(
            prompt[self._reused : last],
            prompt_len=len(prompt),
            start=self._reused,
            observe=session.observe_prompt if wanted else None,
            go_on=lambda: not self._closed,
        )

    def _give_back(self) -> None:
        if self._has_engine:
            self._has_engine = False
            self._counts = replace(self._counts)  # the runner goes on counting
            rows = self._in_place
            self._host.leave(None if rows is None else [*self._prompt, *self.token_ids][:rows])

    def _step(self, session: _core.Session) -> StepTokens:
        runner, times = self._host.runner, self._times
        t0 = time.perf_counter()
        bucket = session.plan(runner.staging)
        t1 = time.perf_counter()
        runner.launch(bucket)
        output = runner.wait()
        t2 = time.perf_counter()
        self._in_place = session.kv_len + 1  # the last path was moved, the root written
        try:
            tokens, accepted = self._commit(session, output)
        except _core.NonFiniteLogits as error:
            hint = "Check the checkpoint, or load it in float32."
            if self._rules is not None:
                hint = (
                    "The request's logit_bias, penalties, min_new_tokens or logits_processor may "
                    f"have ruled out every token. Otherwise: {hint}"
                )
            raise EngineError(f"Generation failed at {error} {hint}") from error
        for depth, row in enumerate(session.accepted_rows, 1):
            if row != depth:
                break
            self._in_place += 1  # a path that the next step need not move
        logprobs = self._note(session, tokens)
        t3 = time.perf_counter()
        times["plan_time_s"] += t1 - t0
        times["forward_time_s"] += t2 - t1
        times["commit_time_s"] += t3 - t2
        return StepTokens(tokens, accepted, logprobs)

    def _commit(
        self, session: _core.Session, output: npt.NDArray[np.int32]
    ) -> tuple[list[int], int]:
        if self.params.verification == "recursive":
            return session.commit_recursive(output, self._host.runner.probabilities())
        processor = self.params.logits_processor
        if processor is None:
            return session.commit(output)

        def next_token(row: int) -> int:
            if output[row, 0] < 0:  # the model's own logits are not finite
                return -1
            # The session has emitted what leads to this row, and nothing else.
            prefix = [*self._prompt, *session.token_ids]
            chosen = self._host.runner.choose(
                row, lambda logits: _processed(processor, prefix, logits)
            )
            output[row, 0] = chosen
            return chosen

        return session.commit_lazily(output, next_token)

    def _note(self, session: _core.Session, tokens: list[int]) -> list[TokenLogprobs] | None:
        """Show the rules a step's tokens; returns their log-probabilities if the rules ask."""
        if self._rules is None:
            return None
        self._host.runner.extend(tokens)
        if self._rules.logprobs is None:
            return None
        rows = [0, *session.accepted_rows][: len(tokens)]
        ids, values = self._host.runner.logprobs(rows)
        return [
            TokenLogprobs(
                row_ids[0], row_values[0], tuple(zip(row_ids[1:], row_values[1:], strict=True))
            )
            for row_ids, row_values in zip(ids.tolist(), values.tolist(), strict=True)
        ]


def _processed(
    processor: Callable[[Sequence[int], Tensor], Tensor], token_ids: list[int], logits: Tensor
) -> Tensor:
    """What a user's function makes of the logits; its own exceptions pass, with a note.

    Raises:
        EngineError: it returned anything else than as many numbers.
    """
    shape = logits.shape
    try:
        returned: object = processor(token_ids, logits)
    except Exception as error:
        error.add_note(
            "Raised by the request's logits_processor, which gets a list of token ids and a tensor "
            f"of logits, [{shape[0]}]. The engine serves the next request."
        )
        raise
    if not isinstance(returned, Tensor):
        shown: object = returned
    elif returned.shape != shape or not returned.is_floating_point():
        shown = f"{tuple(returned.shape)}, {returned.dtype}"
    else:
        return returned
    raise EngineError.for_field(
        "what logits_processor returned",
        shown,
        f"a tensor of floating-point logits of shape {tuple(shape)}, as it was given",
        "Return the logits, also where they were changed in place.",
    )
