"""Drives a drafter that sees successors through a Session and shows each step to a twin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from reference.node import Row
from reference.ptd_algorithm import NextToken, Settings, plain_decode
from reference.step_plan import build_plan
from reference.toy_models import hashed, lookup_last, lookup_last_two
from tape import Tape

from ptd_engine._core import Drafter, Session
from ptd_engine.testing.toy import ToyRunner


class RankedRunner(ToyRunner):
    """A toy model with successors: its next token, then others in an order of its own.

    Rows whose next token no output can hold have no finite logits now and then.
    """

    def __init__(
        self, next_token: NextToken, prompt: list[int], plain: list[int], **sizes: int
    ) -> None:
        super().__init__(next_token, max_seq_len=512, **sizes)
        self.prompt_len = len(prompt)
        self.text = [*prompt, *plain]

    def _outputs(self, contexts: Sequence[list[int]], rows: int) -> npt.NDArray[np.int32]:
        outputs = np.full((rows, 1 + self.top_k), 7777, np.int32)
        for row, context in enumerate(contexts):
            rank = hashed(self.vocab_size, 17, 3)(context)
            read = self.prompt_len <= len(context) and context == self.text[: len(context)]
            if rank % 4 == 0 and not read:
                outputs[row, 0] = -1  # what stands behind it means nothing
                continue
            token = self.next_token(context)
            others = [(rank + k) % self.vocab_size for k in range(self.vocab_size)]
            others.remove(token)
            known = [token, token, *others][: 1 + self.top_k]
            outputs[row] = [*known, *[-1] * (1 + self.top_k - len(known))]
        return outputs


@dataclass
class SeenStep:
    """A step as a twin sees it."""

    tokens: list[int]  # of its rows
    outputs: list[list[int]]  # of its rows: next token, then successors
    path: list[int]  # accepted rows
    emitted: list[int]


def check_steps(
    drafter: Drafter,
    next_token: NextToken,
    prompt: list[int],
    settings: Settings,
    *,
    vocabulary: int,
    propose: Callable[[list[int]], list[Row]],
    observe: Callable[[SeenStep], None],
    observe_prompt: Callable[[int, list[int]], None] = lambda position, output: None,
    extra_successors: int = 0,
) -> int:
    """Run a request; every step's tree must be the twin's. Returns the accepted candidates.

    Args:
        propose: the twin's candidates behind the committed tokens.
        observe, observe_prompt: show the twin a step, and a row of the prompt (position, output).
        extra_successors: what the runner shows beyond what the drafter asked for.
    """
    plain = plain_decode(next_token, prompt, settings)
    top_k = drafter.needs().top_k + extra_successors
    runner = RankedRunner(
        next_token, prompt, plain, vocab_size=vocabulary, max_path=settings.max_path, top_k=top_k
    )
    session = Session(
        prompt,
        drafter,
        max_seq_len=settings.max_seq_len,
        max_new_tokens=settings.max_new_tokens,
        stop_ids=sorted(settings.eos_ids),
        max_path=settings.max_path,
        output_top_k=top_k,
        max_nodes=settings.max_rows,
        vocab_size=vocabulary,
    )

    def hear(first: int, outputs: npt.NDArray[np.int32]) -> None:
        session.observe_prompt(first, outputs)
        for row, output in enumerate(outputs.tolist()):
            observe_prompt(first + row, output)

    wanted = drafter.needs().prompt_outputs
    runner.prefill(prompt[:-1], prompt_len=len(prompt), observe=hear if wanted else None)
    while not session.finished:
        committed = [*prompt, *session.token_ids]
        plan = build_plan(
            committed[-1],
            len(committed) - 1,
            propose(committed),
            [],
            max_seq_len=settings.max_seq_len,
            max_rows=min(settings.max_rows, 1 + drafter.needs().max_nodes),
            max_path=settings.max_path,
        )
        runner.launch(session.plan(runner.staging))
        assert session.tree.tokens == plan.tokens
        assert session.tree.parents == plan.parents
        outputs = runner.wait()
        emitted, accepted = session.commit(outputs)
        path = session.accepted_rows
        assert len(path) == accepted
        observe(SeenStep(plan.tokens, outputs.tolist(), path, emitted))
    assert session.token_ids == plain
    return session.stats["accepted"]


def random_model(tape: Tape, vocabulary: int) -> NextToken:
    kind = tape.below(3)
    if kind == 0:
        return lookup_last([tape.below(vocabulary) for _ in range(vocabulary)])
    if kind == 1:
        rows = range(vocabulary)
        return lookup_last_two([[tape.below(vocabulary) for _ in rows] for _ in rows])
    return hashed(vocabulary, tape.below(256), tape.between(1, 3))


def random_prompt(tape: Tape, vocabulary: int) -> list[int]:
    return [tape.below(vocabulary) for _ in range(tape.between(1, 12))]


def random_limits(tape: Tape, vocabulary: int, prompt_len: int, nodes: int) -> Settings:
    return Settings(
        eos_ids=frozenset(tape.below(8 * vocabulary) for _ in range(tape.below(2))),
        max_new_tokens=tape.between(1, 40),
        max_seq_len=prompt_len + tape.between(1, 50),
        max_rows=tape.between(1, 1 + nodes) if tape.one_in(4) else 1 + nodes,
        max_path=tape.between(1, 8) if tape.one_in(4) else 64,
    )
