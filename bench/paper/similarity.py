"""How much the branches of a draft repeat each other, step by step (the paper's figure 2, right).

The n-gram of a draft row is its token behind those of its n - 1 nearest draft ancestors. The share
of rows whose n-gram another row of the step has already is what the model computed twice: rows of
one tree that share a prefix are counted once, as they are computed once.
"""

from __future__ import annotations

from collections.abc import Callable

from ptd_engine import _core
from ptd_engine.config import SamplingParams
from ptd_engine.llm import LLM

NGRAMS = (1, 2, 3)


def repeated_share(tree: _core.TreeBuilder, n: int) -> float:
    """Share of the step's draft rows whose n-gram is not new; 0 where no row has one."""
    tokens, parents = tree.tokens, tree.parents
    seen: set[tuple[int, ...]] = set()
    counted = 0
    for row in range(tree.n_verify, len(tree)):
        gram: list[int] = []
        at = row
        while at >= tree.n_verify and len(gram) < n:
            gram.append(tokens[at])
            at = parents[at]
        if len(gram) == n:
            counted += 1
            seen.add(tuple(gram))
    return 1 - len(seen) / counted if counted else 0.0


def similarity_by_step(
    llm: LLM, prompt_ids: list[int], params: SamplingParams
) -> dict[str, list[float]]:
    """`repeated_share` of every step of a generation, by n."""
    found: dict[str, list[float]] = {str(n): [] for n in NGRAMS}

    def look(tree: _core.TreeBuilder) -> None:
        for n in NGRAMS:
            found[str(n)].append(round(repeated_share(tree, n), 5))

    watch(llm, prompt_ids, params, look)
    return found


def watch(
    llm: LLM,
    prompt_ids: list[int],
    params: SamplingParams,
    look: Callable[[_core.TreeBuilder], None],
) -> list[int]:
    """Decode as the engine does and show every step's tree before it is run; returns the output."""
    engine, settings = llm.engine, params.resolved()
    runner, drafter = engine.runner, engine.drafter
    session = _core.Session(
        prompt_ids,
        drafter,
        max_seq_len=engine.max_seq_len,
        max_new_tokens=settings.max_new_tokens or engine.max_seq_len,
        temperature=settings.temperature,
        seed=settings.seed,
        stop_ids=engine.eos_token_ids,
        max_path=runner.max_path,
        output_top_k=runner.top_k,
        max_nodes=runner.max_nodes,
        vocab_size=engine.vocab_size,
        node_buckets=runner.node_buckets,
    )
    runner.begin(None)
    wanted = drafter.needs().prompt_outputs
    runner.prefill(
        prompt_ids[:-1],
        prompt_len=len(prompt_ids),
        observe=session.observe_prompt if wanted else None,
    )
    while not session.finished:
        bucket = session.plan(runner.staging)
        look(session.tree)
        runner.launch(bucket)
        session.commit(runner.wait())
    return session.token_ids
