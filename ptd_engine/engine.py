"""The main loop over token ids: plan, forward, commit. It joins algorithm and execution.

One engine serves one request at a time (batch 1 is the point); requests of other threads wait, or
are refused.
"""

from __future__ import annotations

import operator
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ptd_engine import _core
from ptd_engine.config import ResolvedParams, SamplingParams
from ptd_engine.errors import ConfigError, EngineError, PromptError
from ptd_engine.kernels import SelectMode
from ptd_engine.metrics import GenerationStats
from ptd_engine.outputs import FinishReason, StepTree, TokenLogprobs
from ptd_engine.runner import LogitRules, Runner, StepCounts, StepTimes, measure_step_times
from ptd_engine.turnstile import OnBusy, Turnstile


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


class Engine:
    """Decodes token ids with a drafter over a runner.

    Attributes:
        vocab_size: ids below it stand for tokens. Prompts hold no other, and a drafter must propose
            none; the runner sees to it that none is chosen.
        on_busy, reuse_prefix, step_times: as below.
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
        on_busy: OnBusy = "wait",
        reuse_prefix: bool = False,
        step_times: StepTimes | None = None,
    ) -> None:
        """Join a runner and a drafter.

        Args:
            on_busy: what a request does while one of another thread runs: "wait", or "error" for a
                BusyError.
            reuse_prefix: a request does not compute again what its prompt has in common with the
                prompt and output of the last one, from the first token on.
            step_times: what the runner's steps take, for a drafter that sizes its trees by it;
                None, or those of a runner of fewer rows: measured now (some seconds) if the
                drafter wants to know.

        Raises:
            ConfigError: an unknown `on_busy`, a `reuse_prefix` that is not a truth value.
        """
        check_reuse_prefix(reuse_prefix)
        self.runner = runner
        self.drafter = drafter
        self.max_seq_len = max_seq_len
        self.vocab_size = vocab_size
        self.eos_token_ids = tuple(eos_token_ids)
        self.on_busy: OnBusy = on_busy
        self.reuse_prefix = reuse_prefix
        self._turnstile = Turnstile(on_busy)
        self._cached: list[int] = []  # the tokens of the cache rows from 0 on that are in place
        if step_times is not None and step_times.max_rows < runner.max_nodes:
            step_times = None  # of smaller trees: the larger ones would be guesses
        self.step_times = step_times
        if drafter.needs().step_cost:
            times = self.step_times = step_times or measure_step_times(
                runner, max_seq_len, vocab_size
            )
            drafter.set_step_cost(
                list(times.rows), list(times.seconds), list(times.seconds_per_token)
            )

    def check_prompt(self, prompt: Sequence[int]) -> None:
        """Raise PromptError for a prompt that cannot be served."""
        if len(prompt) == 0:
            hint = "To write from nothing, pass the model's BOS token, if it has one."
            raise PromptError.for_field("prompt", prompt, "at least one token", hint)
        if len(prompt) >= self.max_seq_len:
            raise PromptError(
                f"The prompt has {len(prompt)} tokens; the limit is {self.max_seq_len - 1} "
                f"(max_seq_len={self.max_seq_len}, one position is needed for the output). "
                "Shorten the prompt or load the model with a larger max_seq_len."
            )
        for index, token in enumerate(prompt):
            number = _token_id(token)
            if number is None:
                raise PromptError.for_field(f"prompt[{index}]", token, "an integer token id")
            if not 0 <= number < self.vocab_size:
                raise PromptError.for_field(
                    f"prompt[{index}]", token, f"a token id from 0 to {self.vocab_size - 1}"
                )

    def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        stop_check: Callable[[int], bool] | None = None,
    ) -> Generation:
        """Begin a request; iterate over the result to run it.

        Args:
            prompt: token ids.
            params: how to decode.
            stop_check: asked about every output token, in order, also within a step; true ends the
                output with that token. An engine knows no text: this is how stop strings get in.

        Raises:
            PromptError: the prompt is empty, too long or holds ids outside the vocabulary.
            ConfigError: no params, fields that contradict each other, the vocabulary or the room
                behind the prompt, or stop strings without the check that finds them.
        """
        self.check_prompt(prompt)
        params = check_params(params).resolved()
        self._check_ids(params)
        self._check_least_length(params, len(prompt))
        if params.stop_strings and stop_check is None:
            raise ConfigError.for_field(
                "stop", params.stop, "() without a stop_check", "LLM.generate takes stop strings."
            )
        return Generation(self, [int(token) for token in prompt], params, stop_check)

    def warmup(self, *, sampling: bool = False) -> int:
        """Capture the graphs of all steps that requests may meet, so that none stops to do so.

        Without it each is captured when a step first needs it. On a CPU there are none.

        Args:
            sampling: those of requests with a temperature above 0 too, with filters and without.

        Returns:
            how many were captured.

        Raises:
            BusyError: a request of this thread runs, or of any with on_busy="error".
            UnavailableError: graphs are required and cannot be had.
        """
        modes: tuple[SelectMode, ...] = ("greedy", "sample", "filter")
        self._turnstile.enter(lambda: False)
        try:
            self._cached = []  # capturing runs steps that mean nothing
            return self.runner.warmup(modes if sampling else modes[:1])
        finally:
            self._turnstile.leave()

    def _reusable(self, prompt: Sequence[int]) -> int:
        """How many rows of the cache are those of this prompt; its last token is never one."""
        if not self.reuse_prefix:
            return 0
        common = 0
        for cached, token in zip(self._cached, prompt[:-1], strict=False):
            if cached != token:
                break
            common += 1
        return self.runner.reusable(common, prompt_len=len(prompt))

    def _check_ids(self, params: ResolvedParams) -> None:
        named = {"logit_bias": params.logit_bias or (), "stop_token_ids": params.stop_token_ids}
        for field, ids in named.items():
            for token in ids:
                if token >= self.vocab_size:
                    raise ConfigError.for_field(
                        field, token, f"token ids from 0 to {self.vocab_size - 1}"
                    )
        if params.logprobs is not None and params.logprobs > self.vocab_size:
            raise ConfigError.for_field(
                "logprobs", params.logprobs, f"at most {self.vocab_size}, the vocabulary"
            )

    def _check_least_length(self, params: ResolvedParams, prompt_len: int) -> None:
        room = self.max_seq_len - prompt_len
        if params.min_new_tokens > room:
            raise ConfigError.for_field(
                "min_new_tokens",
                params.min_new_tokens,
                f"at most {room}, the room behind {prompt_len} prompt tokens "
                f"(max_seq_len={self.max_seq_len})",
                "Lower it, shorten the prompt, or load the model with a larger max_seq_len.",
            )


def _token_id(value: object) -> int | None:
    """`value` as an int if it is any kind of integer, numpy's too (a bool is none), else None."""
    try:
        return None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:  # arrays and tensors have the method as well
        return None


def check_reuse_prefix(value: object) -> None:
    """Raise ConfigError for anything but True and False: "no" would be true."""
    if not isinstance(value, bool):
        raise ConfigError.for_field("reuse_prefix", value, "True or False")


def check_params(params: SamplingParams) -> SamplingParams:
    """Return `params`; raise ConfigError for anything but SamplingParams."""
    if not isinstance(params, SamplingParams):
        raise ConfigError.for_field(
            "params",
            params,
            "a SamplingParams object",
            "Write generate(prompt, SamplingParams(max_new_tokens=32)).",
        )
    return params


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
        engine: Engine,
        prompt: list[int],
        params: ResolvedParams,
        stop_check: Callable[[int], bool] | None,
    ) -> None:
        self._engine = engine
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
        engine, params, runner = self._engine, self.params, self._engine.runner
        budget = params.max_new_tokens
        return _core.Session(
            self._prompt,
            engine.drafter,
            max_seq_len=engine.max_seq_len,
            max_new_tokens=engine.max_seq_len if budget is None else budget,
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
            vocab_size=engine.vocab_size,
            node_buckets=runner.node_buckets,
        )

    def _stop_ids(self) -> list[int]:
        eos = () if self.params.ignore_eos else self._engine.eos_token_ids
        return [*self.params.stop_token_ids, *eos]

    def _logit_rules(self) -> LogitRules | None:
        """What the request asks of its logits; None if that is nothing."""
        params = self.params
        forbidden = [i for i in self._stop_ids() if i < self._engine.vocab_size]
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
            self._engine._turnstile.passed_on()
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
        if not self._engine._turnstile.enter(lambda: self._closed):
            return
        self._has_engine = True
        start = time.perf_counter()
        session = self._session = self._make_session()
        if not session.finished:
            self._rules = self._logit_rules()
            self._engine.runner.begin(self._rules)
            self._counts = self._engine.runner.counts
            self._prefill(session)
        self._total_s = time.perf_counter() - start

    def _prefill(self, session: _core.Session) -> None:
        prompt, last = self._prompt, len(self._prompt) - 1
        self._reused = self._in_place = self._engine._reusable(prompt)
        wanted = self._engine.drafter.needs().prompt_outputs
        self._in_place = self._engine.runner.prefill(
            prompt[self._reused : last],
            prompt_len=len(prompt),
            start=self._reused,
            observe=session.observe_prompt if wanted else None,
            go_on=lambda: not self._closed,
        )

    def _give_back(self) -> None:
        if self._has_engine:
            if self._in_place is not None:
                self._engine._cached = [*self._prompt, *self.token_ids][: self._in_place]
            self._has_engine = False
            self._counts = replace(self._counts)  # the runner goes on counting
            self._engine._turnstile.leave()

    def _step(self, session: _core.Session) -> StepTokens:
        runner, times = self._engine.runner, self._times
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
            return session.commit_recursive(output, self._engine.runner.probabilities())
        processor = self.params.logits_processor
        if processor is None:
            return session.commit(output)

        def next_token(row: int) -> int:
            if output[row, 0] < 0:  # the model's own logits are not finite
                return -1
            # The session has emitted what leads to this row, and nothing else.
            prefix = [*self._prompt, *session.token_ids]
            chosen = self._engine.runner.choose(
                row, lambda logits: _processed(processor, prefix, logits)
            )
            output[row, 0] = chosen
            return chosen

        return session.commit_lazily(output, next_token)

    def _note(self, session: _core.Session, tokens: list[int]) -> list[TokenLogprobs] | None:
        """Show the rules a step's tokens; returns their log-probabilities if the rules ask."""
        if self._rules is None:
            return None
        self._engine.runner.extend(tokens)
        if self._rules.logprobs is None:
            return None
        rows = [0, *session.accepted_rows][: len(tokens)]
        ids, values = self._engine.runner.logprobs(rows)
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
