"""libptd.so decodes as the session of the Python package does, for every drafter."""

from __future__ import annotations

import json
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from c_library import LENGTH, RUNNING, STOP, CSession, Library
from reference.toy_models import hashed

import ptd_engine
from ptd_engine import _core
from ptd_engine.drafter_configs import HybridConfig
from ptd_engine.drafters import GPU_DEFAULT, REGISTERED, make_drafter
from ptd_engine.testing.toy import ToyRunner

VOCAB = 23
# By measured times the budget would differ from run to run.
FIXED = {"hybrid": {"auto_budget": False}}
# What needs text or files does not exist behind this interface.
LEFT_OUT = {"self-draft": {"corpus", "corpus_candidates"}}
NAMES = [entry.name for entry in REGISTERED]
CASES = [
    *((name, FIXED.get(name, {})) for name in NAMES),
    ("ptd", {"width": 2, "depth": 3, "expansion": "top-k", "expansion_k": 3, "layout": "chained"}),
    ("ptd", {"recycle_verified": True, "initialisation": "context", "seed": 2**64 - 1}),
    ("hybrid", {"auto_budget": False, "max_draft_nodes": 12, "width": 2, "prompt_outputs": True}),
    ("suffix", {"factor": 2.5, "min_probability": 0, "as_tree": False}),
    ("lookahead", {"level": 4, "window": 6, "guesses": 5, "prompt_ngrams": True}),
]


def python_settings(name: str, options: dict[str, Any]) -> Any:
    """The same settings for the Python package, the published ones where none are given."""
    (entry,) = (entry for entry in REGISTERED if entry.name == name)
    if entry.config is None:
        return name
    base: Any = GPU_DEFAULT if name == "ptd" else entry.config()
    return replace(base, **options)


def runner(session: CSession, salt: int) -> ToyRunner:
    return ToyRunner(
        hashed(VOCAB, salt=salt, window=2),
        max_seq_len=512,
        vocab_size=VOCAB,
        top_k=session.needs.output_stride - 1,
    )


def decode(session: CSession, prompt: list[int], salt: int = 3, **request: Any) -> list[int]:
    """One request on the toy model."""
    toy = runner(session, salt)
    session.begin(prompt, **request)
    toy.prefill(prompt[:-1], prompt_len=len(prompt))
    while session.stats["finish_reason"] == RUNNING:
        toy.launch(session.plan(toy.staging).bucket)
        session.commit(toy.wait())
    return session.output


def test_versions(library: Library) -> None:
    assert library.c.ptd_version().decode() == ptd_engine.__version__
    assert library.c.ptd_abi_version() == 1


def test_the_same_drafters_options_and_defaults_as_in_python(library: Library) -> None:
    assert library.names() == NAMES
    for entry in REGISTERED:
        left_out = LEFT_OUT.get(entry.name, set())
        expected = {} if entry.config is None else asdict(entry.config())
        expected = {key: value for key, value in expected.items() if key not in left_out}
        assert json.loads(library.options(entry.name)) == pytest.approx(expected), entry.name
    assert json.loads(library.options("hybrid"))["auto_budget"] is HybridConfig().auto_budget
    assert {field.name for field in fields(HybridConfig)} == json.loads(
        library.options("hybrid")
    ).keys()


@pytest.mark.parametrize(
    ("name", "options"), CASES, ids=[f"{n}-{i}" for i, (n, _) in enumerate(CASES)]
)
def test_decodes_as_the_python_session(
    library: Library, name: str, options: dict[str, Any]
) -> None:
    ours = CSession(library, name, json.dumps(options), vocab_size=VOCAB, max_seq_len=200)
    stats: list[Any] = []
    drafter = make_drafter(python_settings(name, options), device_type="cuda")
    assert ours.needs.output_stride == 1 + drafter.needs().top_k
    assert ours.needs.prompt_outputs == drafter.needs().prompt_outputs
    for salt in range(3):  # one handle, three requests
        prompt = [(salt + 5 * i) % 7 for i in range(20)]
        toy, twin = runner(ours, salt), runner(ours, salt)
        theirs = _core.Session(
            prompt,
            drafter,
            max_seq_len=200,
            max_new_tokens=120,
            output_top_k=toy.top_k,
            vocab_size=VOCAB,
            stop_ids=[22],
            temperature=0.5 * salt,
            top_k=4 * salt,
            top_p=1 - 0.1 * salt,
            seed=salt,
        )
        assert ours.needs.plan_bytes == theirs.plan_bytes
        ours.begin(
            prompt,
            max_new_tokens=120,
            stop_ids=[22],
            temperature=0.5 * salt,
            top_k=4 * salt,
            top_p=1 - 0.1 * salt,
            seed=salt,
        )
        for model, session in ((toy, ours), (twin, theirs)):
            observe = session.observe_prompt if ours.needs.prompt_outputs else None
            model.prefill(prompt[:-1], prompt_len=len(prompt), observe=observe)
        while not theirs.finished:
            plan = ours.plan(toy.staging)
            bucket = theirs.plan(twin.staging)
            size = _core.plan_layout(bucket, 64)["total"]
            assert plan.bucket == bucket
            # What lies between the fields is nobody's.
            for field in ("token_ids", "positions", "commit_src", "temperature", "uniform", "mask"):
                offset, length = _core.plan_layout(bucket, 64)[field]
                there = slice(offset, offset + length)
                assert np.array_equal(toy.staging[there], twin.staging[there]), field
            assert size <= ours.needs.plan_bytes
            assert [plan.token_ids[i] for i in range(bucket)] == (
                twin.staging[slice(*_span(bucket, "token_ids"))].view(np.int32).tolist()
            )
            toy.launch(bucket)
            twin.launch(bucket)
            assert ours.commit(toy.wait()) == theirs.commit(twin.wait())
        stats = [ours.stats, theirs.stats]
        assert ours.output == theirs.token_ids
        assert stats[0]["finish_reason"] == {"stop": STOP, "length": LENGTH}[theirs.finish_reason]
        assert stats[0]["kv_len"] == theirs.kv_len
        assert {key: stats[0][key] for key in stats[1] if key in stats[0]} == {
            key: value for key, value in stats[1].items() if key in stats[0]
        }
    if name != "none":
        assert stats[0]["candidate_nodes"] > 0
    ours.close()


def _span(bucket: int, field: str) -> tuple[int, int]:
    offset, size = _core.plan_layout(bucket, 64)[field]
    return offset, offset + size


def test_a_plan_is_padded_to_a_bucket(library: Library) -> None:
    from c_library import Config, ids

    config = Config(vocab_size=VOCAB, max_seq_len=100, node_buckets=ids([64, 16]), n_node_buckets=2)
    session = CSession(library, "ptd", config=config)
    session.begin([1, 2, 3], max_new_tokens=5)
    plan = session.plan(np.zeros(session.needs.plan_bytes, np.uint8))
    assert (plan.bucket, plan.mask_words, plan.max_path) == (16, 1, 64)
    assert plan.n_nodes < 16 and plan.prefix_len == 2
    assert [plan.mask[i] for i in range(plan.n_nodes, 16)] == [
        1 << i for i in range(plan.n_nodes, 16)
    ]
    # Rows of padding may come or be left out.
    assert session.commit([5] * 16)[0][0] == 5
    session.close()


def test_the_rows_that_a_handle_needs_are_those_of_its_largest_bucket(library: Library) -> None:
    from c_library import Config, ids

    for buckets, most in (([8, 4], 8), ([256], 65)):
        config = Config(
            vocab_size=VOCAB,
            max_seq_len=100,
            node_buckets=ids(buckets),
            n_node_buckets=len(buckets),
        )
        session = CSession(
            library, "ptd", '{"max_draft_nodes": 32, "max_candidate_nodes": 32}', config
        )
        assert session.needs.max_nodes == most
        session.begin([1, 2, 3], max_new_tokens=5)
        plan = session.plan(np.zeros(session.needs.plan_bytes, np.uint8))
        assert plan.n_nodes <= most and plan.bucket <= max(buckets)
        session.close()


def test_many_handles_in_many_threads(library: Library) -> None:
    def one(salt: int) -> list[list[int]]:
        out = []
        for name in NAMES:
            session = CSession(library, name, json.dumps(FIXED.get(name, {})), vocab_size=VOCAB)
            out.append(decode(session, [salt, 1, 2, salt], salt, max_new_tokens=60))
            session.close()
        return out

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(one, range(4)))
    assert together == [one(salt) for salt in range(4)]
    assert all(texts.count(texts[0]) == len(NAMES) for texts in together)


def test_only_the_functions_of_the_header_are_exported(library_path: Path) -> None:
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("there is no nm to list symbols with")
    listed = subprocess.run(
        [nm, "-D", "--defined-only", "--format=posix", library_path],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    exported = {line.split()[0].split("@")[0] for line in listed.splitlines()}
    header = Path(ptd_engine.__file__).parents[1] / "csrc/include/ptd/ptd.h"
    declared = {
        line.split("(")[0].split()[-1].lstrip("*")
        for line in header.read_text(encoding="utf-8").splitlines()
        if line.startswith("PTD_API ")
    }
    assert len(declared) > 10
    assert exported == declared
