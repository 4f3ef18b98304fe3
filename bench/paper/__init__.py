"""The paper's experiments on a model of yours: tables, figures and one report.

Every finished unit is a line of runs.jsonl in the folder of --out, so a run that was stopped goes
on with --resume. Plain decoding and the drafters take turns prompt by prompt; a drafter whose
output differs from plain decoding's gets no figure.
Source: arXiv 2607.10661, section 4.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from bench.common import (
    add_model_arguments,
    choose_drafters,
    load_plain,
    model_settings,
    positive,
)
from bench.paper import details, plots, speed
from bench.paper.execute import Request, limited, run_all
from bench.paper.plan import FULL, KINDS, METHODS, QUICK, Experiment, Scale, experiments
from bench.paper.sections import Section
from bench.paper.store import Store, Unit
from bench.paper.write import write_report
from bench.prompt_sets import PromptSet, add_prompt_set_arguments, load_sets
from bench.report import Document, make_table
from ptd_engine.cli.requests import chat_form
from ptd_engine.errors import ConfigError

RUNS = "runs.jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this benchmark."""
    add_model_arguments(parser)
    add_prompt_set_arguments(parser, folder_only=True)
    parser.add_argument("--raw", action="store_true", help="no chat template")
    parser.add_argument(
        "--quick", action="store_true", help="few prompts, short outputs, fewer trees"
    )
    parser.add_argument("--resume", action="store_true", help="go on with the runs in --out")
    parser.add_argument(
        "--sweep-limit",
        type=positive,
        metavar="K",
        help="prompts of each set for everything but the comparison of methods (default: --limit)",
    )
    parser.add_argument("--max-new-tokens", type=positive, metavar="N")
    parser.add_argument("--repeats", type=positive, metavar="R")
    parser.add_argument("--temperature", type=float, default=0.8, help="of the sampled part")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--drafter",
        nargs="+",
        action="extend",
        metavar="NAME[:OPTION=VALUE,...]",
        help="methods to compare (default: the paper's and every other one of this engine)",
    )
    parser.add_argument(
        "--parts", nargs="+", choices=KINDS, default=list(KINDS), help="default: all"
    )
    parser.add_argument("--without-plots", action="store_true", help="tables only")


def run(args: argparse.Namespace) -> Document:
    """Measure and write the report. Raises PTDError for arguments that cannot be served."""
    if args.out is None:
        raise ConfigError.for_field("--out", None, "a folder, for the runs and the report")
    if not args.without_plots:
        plots.check_available()
    if not args.temperature > 0:
        raise ConfigError.for_field(
            "--temperature", args.temperature, "above 0", "Greedy decoding is measured anyway."
        )
    scale, sets = _scale(args), load_sets(args)
    plan = experiments(scale, args.drafter or METHODS, args.temperature, args.parts)
    store = Store(Path(args.out) / RUNS, resume=args.resume)
    request = _request(args, scale, sets, plan)
    units = run_all(request, plan, store)
    sections = build_sections(plan, units, scale.max_new_tokens)
    settings = {
        **request.model,
        "scale": asdict(scale),
        "prompt_sets": [{"name": s.name, "prompts": len(s.items)} for s in sets],
        "chat_template": request.as_chat,
        "temperature": args.temperature,
        "seed": args.seed,
        "experiments": {e.name: [c.label for c in request.choices(e)] for e in plan},
    }
    mismatches = [(u.experiment, m) for u in units for m in u.mismatches]
    commits = sorted({unit.commit or "unknown" for unit in units})
    document = Document(
        "paper",
        correct=not mismatches,
        settings=settings,
        results={
            "sections": [section.as_dict() for section in sections],
            "mismatches": [{"experiment": name, **asdict(m)} for name, m in mismatches],
            "commits": commits,
        },
        tables=[
            make_table(s.title, [h for h, _ in s.columns], s.cells(), text_columns=2)
            for s in sections
        ],
        notes=[f"{name}: {m}" for name, m in mismatches],
        device=request.base.model.device,
    )
    drawn = {} if args.without_plots else _draw(sections, Path(args.out))
    write_report(Path(args.out), _title(request), _intro(document), sections, drawn)
    return document


def build_sections(
    plan: Sequence[Experiment], units: Sequence[Unit], max_new_tokens: int
) -> list[Section]:
    """All parts of the report that these units allow."""
    sections: list[Section] = []
    for experiment in plan:
        own = [unit for unit in units if unit.experiment == experiment.name]
        if experiment.kind == "methods":
            sections.append(speed.methods_section(own, experiment.temperature))
            if experiment.temperature > 0:
                sections.append(details.quality_section(own))
            else:
                sections.append(details.depth_section(own))
                sections.append(details.position_section(own, max_new_tokens))
        elif experiment.kind == "width":
            title = "Figure 5: the width of PTD's tree, at depth 6"
            sections.append(speed.sweep_section(own, "width", title, "width"))
        elif experiment.kind == "depth":
            title = "Figure 6: the depth of PTD's tree, at width 4"
            sections.append(speed.sweep_section(own, "depth", title, "depth"))
        elif experiment.kind == "overhead":
            sections.append(speed.overhead_section(own))
        else:
            sections.append(details.branches_section(own))
    sections.append(details.time_section(units))
    return sections


def _scale(args: argparse.Namespace) -> Scale:
    scale = QUICK if args.quick else FULL
    if args.limit is not None:
        sweep = args.limit if scale.sweep_limit is None else min(args.limit, scale.sweep_limit)
        scale = replace(scale, limit=args.limit, sweep_limit=sweep)
    if args.sweep_limit is not None:
        scale = replace(scale, sweep_limit=args.sweep_limit)
    return replace(
        scale,
        max_new_tokens=args.max_new_tokens or scale.max_new_tokens,
        repeats=args.repeats or scale.repeats,
    )


def _request(
    args: argparse.Namespace,
    scale: Scale,
    sets: Sequence[PromptSet],
    plan: Sequence[Experiment],
) -> Request:
    base = load_plain(args)
    # A wrong one is named before anything runs.
    choose_drafters([label for e in plan for label in e.drafters], base.model.device.type)
    model = {**model_settings(args, base.model), "weight_bytes": base.model.weight_bytes}
    few, all_of_them = limited(sets, scale.sweep_limit), limited(sets, scale.limit)
    return Request(
        base,
        model,
        {kind: all_of_them if kind == "methods" else few for kind in KINDS},
        chat_form(base, False if args.raw else None),
        scale.max_new_tokens,
        scale.repeats,
        args.seed,
    )


def _draw(sections: Sequence[Section], folder: Path) -> dict[str, Path]:
    drawn = {section.name: plots.draw(section, folder) for section in sections}
    return {name: path for name, path in drawn.items() if path is not None}


def _title(request: Request) -> str:
    return f"Progressive Tree Drafting on {request.model['model']}"


def _intro(document: Document) -> list[str]:
    settings = document.settings
    scale = settings["scale"]
    return [
        f"{settings['dtype']} on {settings['device']}, at most {scale['max_new_tokens']} tokens, "
        f"median of {scale['repeats']} a prompt. Tables and figures are those of arXiv "
        "2607.10661 by their subject. The paper's own figures are of other models on other "
        "machines and are not repeated here. The parts on acceptance by depth, on tokens along "
        "the output and on the time of a step have no number of the paper's.",
        f"Machine and versions are in report.json. Code: {', '.join(document.results['commits'])}.",
        "Every output was compared with plain decoding's: "
        + (
            f"{len(document.results['mismatches'])} differ, and their methods get no figure."
            if document.results["mismatches"]
            else "all are identical."
        ),
    ]
