"""Whole decode loops: Session with PTDDrafter against Algorithm 1 and against plain decoding."""

from __future__ import annotations

from dataclasses import replace

from reference.ptd_algorithm import NextToken, Settings, decode, plain_decode
from reference.toy_models import hashed, lookup_last, lookup_last_two, ranked
from session_driver import run
from tape import Tape, on_tapes

from ptd_engine._core import AutoregressiveDrafter, PTDDrafter, Session


def random_model(tape: Tape, vocabulary: int) -> NextToken:
    kind = tape.below(3)
    if kind == 0:
        return lookup_last([tape.below(vocabulary) for _ in range(vocabulary)])
    if kind == 1:
        rows = range(vocabulary)
        return lookup_last_two([[tape.below(vocabulary) for _ in rows] for _ in rows])
    return hashed(vocabulary, tape.below(256), tape.between(1, 3))


def random_settings(tape: Tape, vocabulary: int, prompt_len: int) -> Settings:
    max_draft_nodes, max_candidate_nodes = tape.between(1, 30), tape.between(1, 24)
    rows = 1 + max_draft_nodes + max_candidate_nodes
    return Settings(
        width=tape.between(1, 4),
        depth=tape.between(1, 6),
        max_draft_nodes=max_draft_nodes,
        max_candidate_nodes=max_candidate_nodes,
        max_pool_nodes_per_key=tape.between(1, 30),
        max_pool_keys=tape.between(1, 6),
        eos_ids=frozenset(tape.below(4 * vocabulary) for _ in range(tape.below(3))),
        max_new_tokens=tape.between(1, 48),
        max_seq_len=prompt_len + tape.between(1, 60),
        max_rows=tape.between(2, rows) if tape.one_in(4) else rows,
        max_path=64,
        recycle_verified=tape.one_in(2),
        expansion=("greedy", "top-k", "top-p")[tape.below(3)],
        expansion_k=tape.between(1, min(vocabulary, 5)),
        initialisation=("random", "context", "ner")[tape.below(3)],
        layout=("sibling", "chained")[tape.below(2)],
    )


def sessions_of(prompt: list[int], settings: Settings, seed: int) -> tuple[Session, PTDDrafter]:
    drafter = PTDDrafter(
        width=settings.width,
        depth=settings.depth,
        max_draft_nodes=settings.max_draft_nodes,
        max_candidate_nodes=settings.max_candidate_nodes,
        pool_nodes_per_key=settings.max_pool_nodes_per_key,
        pool_max_keys=settings.max_pool_keys,
        recycle_verified=settings.recycle_verified,
        seed=seed,
        eos_ids=sorted(settings.eos_ids),
        expansion=settings.expansion,
        expansion_k=settings.expansion_k,
        expansion_p=settings.expansion_p,
        initialisation=settings.initialisation,
        layout=settings.layout,
    )
    session = Session(
        prompt,
        drafter,
        max_seq_len=settings.max_seq_len,
        max_new_tokens=settings.max_new_tokens,
        stop_ids=sorted(settings.eos_ids),
        node_buckets=[settings.max_rows],
        output_top_k=drafter.needs().top_k,
    )
    return session, drafter


def check_loop(
    next_token: NextToken, prompt: list[int], settings: Settings, seed: int, vocabulary: int
) -> int:
    """Run both loops in lockstep; returns how many candidate tokens were accepted."""
    session, drafter = sessions_of(prompt, settings, seed)
    successors = None
    if settings.expansion != "greedy":
        k, cut = settings.expansion_k, settings.expansion == "top-p"
        successors = ranked(next_token, vocabulary, k, salt=seed, cut=cut)
    first_chains = [drafter.initial_chains]
    twin = decode(
        next_token,
        prompt,
        lambda: first_chains.pop() if first_chains else drafter.initial_chains,
        settings,
        successors,
    )
    candidates = drafts = hits = hit_tokens = 0
    for steps, tokens in enumerate(run(session, prompt, next_token, successors), start=1):
        step = next(twin)
        candidates += step.candidate_rows
        drafts += step.draft_rows
        hits += step.candidate_rows > 0
        hit_tokens += len(tokens) * (step.candidate_rows > 0)
        assert tokens == step.output
        assert drafter.draft_tree.roots() == step.draft_tree.nested()
        assert drafter.pool.dump() == step.pool.dump()
        assert list(drafter.pool.dump()) == list(step.pool.dump())
        stats = session.stats
        assert (stats["candidate_nodes"], stats["draft_nodes"]) == (candidates, drafts)
        assert (stats["hit_steps"], stats["hit_tokens"]) == (hits, hit_tokens)
        assert (stats["steps"], stats["tokens"]) == (steps, len(session.token_ids))
    assert next(twin, None) is None
    plain = plain_decode(next_token, prompt, settings)
    assert session.token_ids == plain
    assert session.finish_reason == ("stop" if plain[-1] in settings.eos_ids else "length")
    return session.stats["accepted"]


@on_tapes(examples=1500, length=100)
def test_decoding_follows_algorithm_1_and_plain_decoding(tape: Tape) -> None:
    vocabulary = tape.between(2, 9)
    prompt = [tape.below(vocabulary) for _ in range(tape.between(1, 12))]
    settings = random_settings(tape, vocabulary, len(prompt))
    model, seed = random_model(tape, vocabulary), tape.below(256)
    check_loop(model, prompt, settings, seed, vocabulary)


def test_the_default_settings_follow_algorithm_1_and_accept_candidates() -> None:
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    settings = Settings(max_new_tokens=120, max_rows=157)
    for salt in range(4):
        assert check_loop(hashed(50, salt, 2), prompt, settings, salt, 50) > 20


def test_a_drafter_starts_every_request_afresh() -> None:
    """The same request before and after another one: equal tokens and equal step counts (B7)."""
    settings = Settings(max_new_tokens=60, max_rows=157)
    model = hashed(20, 5, 2)
    _, drafter = sessions_of([1, 2, 3], settings, seed=3)
    seen = []
    for prompt in ([1, 2, 3], [7, 7, 8, 9, 10, 11], [1, 2, 3]):
        session = Session(prompt, drafter, max_seq_len=500, max_new_tokens=60)
        list(run(session, prompt, model))
        seen.append((session.token_ids, session.stats))
    assert seen[0] == seen[2]
    assert seen[0] != seen[1]


def test_the_chains_come_from_the_prompt_and_never_hold_an_eos() -> None:
    prompt = [2, 5, 6, 2, 7, 8]
    for seed in range(200):
        drafter = PTDDrafter(seed=seed, eos_ids=[2, 8])
        Session(prompt, drafter, max_seq_len=99)
        assert len(drafter.initial_chains) == 2
        firsts = [chain[0] for chain in drafter.initial_chains]
        assert len(set(firsts)) == 2
        assert {token for chain in drafter.initial_chains for token in chain} <= {5, 6, 7}
        assert {len(chain) for chain in drafter.initial_chains} <= {1, 2}


def test_without_candidate_rows_nothing_is_accepted() -> None:
    settings = Settings(max_candidate_nodes=0, max_new_tokens=20, max_rows=97)
    session, _ = sessions_of([1, 2], settings, seed=0)
    model = hashed(3, 1, 1)
    assert all(len(tokens) == 1 for tokens in run(session, [1, 2], model))
    assert session.token_ids == plain_decode(model, [1, 2], settings)
    assert session.stats["candidate_nodes"] == session.stats["hit_steps"] == 0


def test_the_reference_is_lossless_in_the_chained_layout_too() -> None:
    settings = Settings(max_new_tokens=60, layout="chained")
    model, prompt = hashed(20, 3, 2), [1, 2, 3, 4]
    steps = list(decode(model, prompt, lambda: [[1, 2], [3]], settings))
    sibling = replace(settings, layout="sibling")
    siblings = list(decode(model, prompt, lambda: [[1, 2], [3]], sibling))
    plain = plain_decode(model, prompt, settings)
    assert [token for step in steps for token in step.output] == plain
    assert [token for step in siblings for token in step.output] == plain
    assert [step.draft_rows for step in steps] != [step.draft_rows for step in siblings]


def test_plain_decoding_has_one_row_a_step() -> None:
    settings = Settings(max_new_tokens=20)
    model = hashed(9, 1, 2)
    session = Session([1, 2], AutoregressiveDrafter(), max_seq_len=4096, max_new_tokens=20)
    assert all(len(tokens) == 1 for tokens in run(session, [1, 2], model))
    assert session.token_ids == plain_decode(model, [1, 2], settings)
    assert session.stats["steps"] == 20
    assert session.stats["candidate_nodes"] == session.stats["draft_nodes"] == 0
    shorter = replace(settings, max_new_tokens=5)
    assert session.token_ids[:5] == plain_decode(model, [1, 2], shorter)
