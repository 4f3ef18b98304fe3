"""Run what is not in the file of runs yet, with a progress bar."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bench.common import DrafterChoice, choose_drafters
from bench.environment import git_state
from bench.paired import PLAIN, PromptRuns, find_mismatches, generate, run_in_turn, warm_up
from bench.paper.plan import PAPER_TREE, Experiment
from bench.paper.similarity import similarity_by_step
from bench.paper.store import Store, Unit, settings_key
from bench.prompt_sets import PromptSet, evenly
from ptd_engine.cli.requests import encode
from ptd_engine.config import SamplingParams
from ptd_engine.llm import LLM

# What else is written where outputs are compared as texts; neither is to equal plain decoding's.
OTHER_SEED = "none, another seed"
RECURSIVE = "ptd, recursive verification"
_FORMAT = 1  # of a line; another one runs everything anew


@dataclass(frozen=True)
class Request:
    """What all experiments share.

    Attributes:
        base: holds model and tokenizer.
        model: facts of the model that decide a result.
        sets: prompts of each kind of experiment, by its name.
    """

    base: LLM
    model: Mapping[str, Any]
    sets: Mapping[str, Sequence[PromptSet]]
    as_chat: bool
    max_new_tokens: int
    repeats: int
    seed: int

    def params(self, experiment: Experiment) -> SamplingParams:
        """How this experiment decodes."""
        return SamplingParams(
            max_new_tokens=self.max_new_tokens,
            temperature=experiment.temperature,
            seed=self.seed,
        )

    def choices(self, experiment: Experiment) -> list[DrafterChoice]:
        """Its drafters, each meaning once (on a GPU "ptd" is the paper's tree)."""
        found: list[DrafterChoice] = []
        labels = [label for label in experiment.drafters if label != PLAIN]
        for choice in choose_drafters(labels, self.base.model.device.type):
            if choice.spec not in [other.spec for other in found]:
                found.append(choice)
        return found


@dataclass(frozen=True)
class _Task:
    """A unit to run or to find."""

    key: str
    prompt: PromptRuns


def run_all(request: Request, plan: Sequence[Experiment], store: Store) -> list[Unit]:
    """Every unit of the plan, in its order, run here or found in the store.

    Raises:
        PTDError: an unknown drafter, a prompt that does not fit.
    """
    tasks = {e: list(_tasks(request, e)) for e in plan}
    commit = git_state()["commit"]
    units = []
    with _progress() as progress:
        bar = progress.add_task("", total=sum(map(len, tasks.values())))
        for experiment, own in tasks.items():
            progress.update(bar, description=experiment.name)
            pending = [task for task in own if store.find(task.key) is None]
            progress.advance(bar, len(own) - len(pending))
            for finished in _run(request, experiment, pending, commit):
                store.add(finished)
                progress.advance(bar)
            found = (store.find(task.key) for task in own)
            units += [unit for unit in found if unit is not None]
    return units


def _tasks(request: Request, experiment: Experiment) -> Iterator[_Task]:
    shared = {
        "format": _FORMAT,
        "model": request.model,
        "context": request.base.engine.max_seq_len,
        "experiment": experiment.name,
        "drafters": {c.label: c.as_json() for c in request.choices(experiment)},
        "max_new_tokens": request.max_new_tokens,
        "repeats": request.repeats,
        "seed": request.seed,
    }
    for prompt_set in request.sets[experiment.kind]:
        for item in prompt_set.items:
            ids = encode(request.base, item.text, as_chat=request.as_chat)
            request.base.engine.check_prompt(ids)
            prompt = PromptRuns(prompt_set.name, item.id, ids, {})
            where = {"set": prompt_set.name, "id": item.id, "prompt": ids}
            yield _Task(settings_key(shared | where), prompt)


def _run(
    request: Request, experiment: Experiment, pending: Sequence[_Task], commit: str | None
) -> Iterator[Unit]:
    if not pending:
        return
    base, params = request.base, request.params(experiment)
    # One cache an engine: as long as these prompts need it, not as long as the model allows.
    longest = max(len(task.prompt.prompt_ids) for task in pending) + request.max_new_tokens
    length = min(longest, base.engine.max_seq_len)
    engines = {
        label: LLM.from_model(base.model, base.tokenizer, max_seq_len=length, drafter=spec)
        for label, spec in [
            (PLAIN, PLAIN),
            *((c.label, c.spec) for c in request.choices(experiment)),
        ]
    }
    warm_up(engines, pending[0].prompt.prompt_ids, params)
    for index, task in enumerate(pending):
        for repeat in range(request.repeats):
            run_in_turn(engines, task.prompt, params, index + repeat)
        mismatches = find_mismatches([task.prompt], engines[PLAIN])
        similarity = {}
        if experiment.kind == "branches":
            similarity = {
                label: similarity_by_step(llm, task.prompt.prompt_ids, params)
                for label, llm in engines.items()
                if label != PLAIN
            }
        texts = {
            label: base.tokenizer.decode(runs[0].token_ids)
            for label, runs in task.prompt.runs.items()
            if label == PLAIN or any(m.drafter == label for m in mismatches)
        }
        if experiment.kind == "methods" and experiment.temperature > 0:
            texts |= _other_texts(engines, task.prompt.prompt_ids, params)
        yield Unit(task.key, experiment.name, task.prompt, mismatches, texts, similarity, commit)


def _other_texts(
    engines: Mapping[str, LLM], prompt_ids: list[int], params: SamplingParams
) -> dict[str, str]:
    """What sampling writes with another seed, and by the paper's own way of verification."""
    plain = engines[PLAIN]
    wanted = [(OTHER_SEED, plain, replace(params, seed=(params.seed or 0) + 1))]
    drafted = engines.get(PAPER_TREE)
    if drafted is not None:
        wanted.append((RECURSIVE, drafted, replace(params, verification="recursive")))
    return {
        label: plain.tokenizer.decode(generate(llm, prompt_ids, own).token_ids)
        for label, llm, own in wanted
    }


def limited(sets: Sequence[PromptSet], limit: int | None) -> list[PromptSet]:
    """The sets with at most `limit` prompts each."""
    return [PromptSet(s.name, tuple(evenly(s.items, limit))) for s in sets]


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
