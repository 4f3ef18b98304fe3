from __future__ import annotations

from typing import Any

import pytest

from ptd_engine.config import PTDConfig, SamplingParams
from ptd_engine.drafters import make_drafter, resolve
from ptd_engine.errors import ConfigError

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_new_tokens", -1),
        ("max_new_tokens", 1.5),
        ("max_new_tokens", True),
        ("temperature", -0.1),
        ("temperature", NAN),
        ("temperature", INF),
        ("temperature", "hot"),
        ("top_k", -1),
        ("top_k", 2.0),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", NAN),
        ("min_p", -0.1),
        ("min_p", 2),
        ("seed", -1),
        ("seed", 2**64),
        ("verification", "sequential"),
        ("stop_token_ids", "</s>"),
        ("stop_token_ids", ["</s>"]),
        ("stop_token_ids", [-1]),
    ],
)
def test_bad_sampling_values_are_named(field: str, value: Any) -> None:
    settings: dict[str, Any] = {"temperature": 1.0, field: value}
    with pytest.raises(ConfigError, match=field):
        SamplingParams(**settings)


@pytest.mark.parametrize("setting", [{"top_p": 0.9}, {"min_p": 0.1}, {"top_k": 40}])
def test_filters_without_temperature_are_contradictory(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="temperature"):
        SamplingParams(temperature=0.0, **setting)
    # Left open, the temperature may still come from a model's generation_config.json.
    with pytest.raises(ConfigError, match="temperature"):
        SamplingParams(**setting).resolved()
    assert SamplingParams(**setting).resolved({"temperature": 0.5}).temperature == 0.5


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("width", 0),
        ("width", 65),
        ("depth", 0),
        ("depth", "6"),
        ("max_draft_nodes", 0),
        ("max_draft_nodes", 256),
        ("max_candidate_nodes", -1),
        ("max_candidate_nodes", 160),
        ("pool_nodes_per_key", 0),
        ("pool_max_keys", 0),
        ("expansion", "beam"),
        ("expansion", None),
        ("expansion_k", 0),
        ("expansion_k", 65),
        ("expansion_p", 0.0),
        ("expansion_p", 1.1),
        ("expansion_p", NAN),
        ("initialisation", "entities"),
        ("layout", "chain"),
        ("seed", 1.0),
    ],
)
def test_bad_drafting_values_are_named(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=field):
        PTDConfig(**{field: value})


def test_unknown_drafter_lists_the_known() -> None:
    with pytest.raises(ConfigError, match="'none', 'ptd'"):
        make_drafter("eagle", device_type="cpu")


def test_ptd_means_the_papers_tree_on_a_gpu() -> None:
    assert make_drafter("ptd", device_type="cuda").needs().max_nodes == 96 + 60
    assert make_drafter("ptd", device_type="cpu").needs().max_nodes < 40


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("ptd:widht=4", "drafter option='widht'.*width, depth"),
        ("ptd:width=four", "width='four'.*an integer"),
        ("ptd:width=0", "width=0"),
        ("ptd:share_pool=yes", "share_pool='yes'.*true or false"),
        ("ptd:layout=tree", "layout='tree'.*'sibling' or 'chained'"),
        ("ptd:expansion_p=half", "expansion_p='half'.*a number"),
        ("none:width=4", "none:width=4.*no options"),
        (7, "drafter=7.*'ptd'"),
    ],
)
def test_bad_drafter_options_are_named(spec: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(spec, "cpu")


def test_drafter_options_begin_at_the_published_values() -> None:
    assert resolve("ptd:width=2,share_pool=true", "cpu") == PTDConfig(width=2, share_pool=True)


def test_drafter_options_take_names_and_numbers() -> None:
    spec = "ptd:expansion=top-p,expansion_k=3,expansion_p=0.5,initialisation=ner,layout=chained"
    expected = PTDConfig(
        expansion="top-p",
        expansion_k=3,
        expansion_p=0.5,
        initialisation="ner",
        layout="chained",
    )
    assert resolve(spec, "cpu") == expected
    needs = make_drafter(expected, device_type="cpu").needs()
    assert (needs.top_k, needs.top_p) == (3, 0.5)
