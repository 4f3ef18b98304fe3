"""Requests over token ids, one at a time: batch 1 is the point. Others wait, or are refused."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

from ptd_engine import _core
from ptd_engine.config import ResolvedParams, SamplingParams
from ptd_engine.errors import ConfigError, PromptError
from ptd_engine.generation import Generation, StepTokens
from ptd_engine.kernels import SelectMode
from ptd_engine.runner import Runner, StepTimes, measure_step_times
from ptd_engine.turnstile import OnBusy, Turnstile

__all__ = ["Engine", "Generation", "StepTokens", "check_params", "check_reuse_prefix"]


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

    def enter(self, cancelled: Callable[[], bool]) -> bool:
        """For a `Generation`, as the next three: take the engine; false if cancelled meanwhile.

        Raises:
            BusyError: see `on_busy`; also where another request of this thread has the engine.
        """
        return self._turnstile.enter(cancelled)

    def passed_on(self) -> None:
        """Note that this thread reads the request now."""
        self._turnstile.passed_on()

    def leave(self, in_place: list[int] | None) -> None:
        """Give the engine back, with the tokens of the cache rows; None: they are as before."""
        if in_place is not None:
            self._cached = in_place
        self._turnstile.leave()

    def reusable(self, prompt: Sequence[int]) -> int:
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
