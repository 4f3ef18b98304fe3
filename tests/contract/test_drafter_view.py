"""`llm.drafter`: the drafter with everything it has, and the tree of the last step in words."""

from __future__ import annotations

import copy
import io
from functools import partial

import pytest
from rich.console import Console

from ptd_engine import LLM, SamplingParams, _core
from ptd_engine.drafter_configs import HybridConfig
from ptd_engine.drafters import make_drafter
from ptd_engine.errors import ConfigError
from ptd_engine.testing.toy import ToyRunner, scripted

from .conftest import OTHER, PROMPT, engine_of, ids_of, llm_of, tokenizer_of, toy

PIECES = ["a", "[b]", "\n", "d"]
SCRIPT = [*ids_of(PIECES * 5)]


def hybrid(script: list[int] = SCRIPT, **settings: object) -> LLM:
    """A toy whose output is `script`, drafted by hybrid with trees of a fixed size."""
    config = HybridConfig(
        max_candidate_nodes=6,
        auto_budget=False,
        successors=2,
        **settings,  # type: ignore[arg-type]
    )
    engine = engine_of(
        scripted(script, prompt_len=1, other=OTHER),
        make_drafter(config, device_type="cpu"),
        vocab_size=1 + max(script),
        runner=partial(ToyRunner, top_k=2),
    )
    return llm_of(engine, tokenizer_of(PIECES))


def explained(llm: LLM, *, colour: bool = False) -> str:
    out = io.StringIO()
    system = "standard" if colour else None
    console = Console(
        file=out,
        width=200,
        force_terminal=colour,
        color_system=system,  # type: ignore[arg-type]
        no_color=not colour,
        _environ={},
    )
    assert llm.drafter.explain(console=console) is None  # type: ignore[func-returns-value]
    return out.getvalue()


def test_it_is_the_drafter() -> None:
    llm = hybrid()
    view = llm.drafter
    assert view.core is llm.engine.drafter
    assert isinstance(view.core, _core.HybridDrafter)
    assert view.needs().max_nodes == 6 and view.nodes == [] and "source_counts" in dir(view)
    assert "HybridDrafter" in repr(view)
    assert copy.copy(view).core is view.core
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = view.no_such_thing


def test_the_tree_between_chunks_and_at_the_end() -> None:
    llm = hybrid()
    texts = {token: repr(text) for text, token in zip(PIECES, ids_of(PIECES), strict=True)}
    texts |= {PROMPT: "'<prompt>'", OTHER: "'<other>'", 2: "'<eos>'"}
    assert "No step yet" in explained(llm)
    drafted = 0
    committed = [PROMPT]
    for chunk in llm.stream([PROMPT], SamplingParams(max_new_tokens=len(SCRIPT))):
        shown = explained(llm).splitlines()
        nodes = llm.drafter.nodes
        assert len(shown) == 1 + len(nodes)
        if chunk.output is None:
            accepted = sum(node[4] for node in nodes)
            assert shown[0].split() == [
                *("root", texts[committed[-1]], "budget", str(len(nodes)), "nodes,"),
                *("accepted", str(accepted)),
            ]
            assert accepted >= chunk.accepted
            drafted += accepted
        names = list(llm.drafter.source_counts)
        lines = sorted(line.lstrip("│├└─ ") for line in shown[1:])
        assert lines == sorted(
            f"{texts[token]}{' ✓' if taken else ''}  {probability:.2f}  "
            + ", ".join(name for bit, name in enumerate(names) if bits >> bit & 1)
            for token, _, probability, bits, taken in nodes
        )
        committed += chunk.token_ids
    assert drafted > 0


def test_a_child_stands_below_its_parent_and_the_accepted_path_is_green() -> None:
    llm = hybrid()
    chunks = llm.stream([PROMPT], SamplingParams(max_new_tokens=len(SCRIPT)))
    next(chunk for chunk in chunks if chunk.accepted >= 2)
    plain = explained(llm).splitlines()
    path = [line for line in plain if "✓" in line]
    indents = [len(line) - len(line.lstrip("│├└─ ")) for line in path]
    assert len(path) >= 2 and indents == [4 * (1 + depth) for depth in range(len(path))]
    coloured = explained(llm, colour=True).splitlines()
    assert [("\x1b[1;32m" in line) for line in coloured] == ["✓" in line for line in plain]
    chunks.close()


def test_a_drafter_without_probabilities_says_so() -> None:
    with pytest.raises(ConfigError, match=r"FixedBlocks .*drafter='hybrid'.*trees=True"):
        toy(PIECES).drafter.explain()


@pytest.mark.parametrize("keep", [False, True])
def test_kept_tables_draft_a_second_request_from_the_first(keep: bool) -> None:
    script = [3, 8, 5, 10, 7, 4, 9, 6, 11, 14, 12, 16, 13, 18, 15]
    llm = hybrid(script, keep_tables=keep)
    params = SamplingParams(max_new_tokens=len(script))
    runs = []
    for _ in range(2):
        generation = llm.engine.generate([PROMPT], params)
        list(generation)
        assert generation.token_ids == script
        runs.append(generation.stats)
    assert runs[0].accepted == 0  # nothing of it stood before
    if keep:
        assert runs[1].accepted > len(script) // 2 and runs[1].steps < runs[0].steps
    else:
        assert runs[1].accepted == 0 and runs[1].steps == runs[0].steps
