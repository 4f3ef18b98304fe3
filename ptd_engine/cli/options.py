"""Options that several commands share, and the checks that need no model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ptd_engine.config import PTDConfig
from ptd_engine.drafter_configs import HybridConfig
from ptd_engine.errors import ConfigError

if TYPE_CHECKING:
    from ptd_engine.runner import GraphsMode

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help='A local directory, a .gguf file, a hub id, or "demo".',
        show_default=False,
    ),
]
Dtype = Annotated[
    str,
    typer.Option(
        help="auto (the checkpoint's), float32, bfloat16, float16; on a CPU also int8 and int4 "
        "(quantised weights)."
    ),
]
Device = Annotated[
    str,
    typer.Option(help="auto (a GPU if there is one), cpu, cuda or cuda:N."),
]
Kernels = Annotated[
    str,
    typer.Option(help="Backend of the operations: auto, or a name that `ptd-engine doctor` lists."),
]
Graphs = Annotated[
    str,
    typer.Option(
        help="auto: CUDA graphs where there is a GPU, and steps op by op where capturing fails; "
        "off: none; require: it is an error not to have them."
    ),
]
NumThreads = Annotated[
    int | None,
    typer.Option(
        "--num-threads", metavar="N", help="Threads of the CPU kernels. Default: torch's number."
    ),
]
TensorParallel = Annotated[
    int,
    typer.Option(
        "--tensor-parallel",
        metavar="N",
        help="Processes that share the weights and the cache, each with a device of its own. "
        "Under torchrun: as many as it has started.",
    ),
]
MaxSeqLen = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Longest prompt and output together, in tokens. Default: the model's context, up to "
        "8192.",
        show_default=False,
    ),
]
Drafter = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[:OPTION=VALUE,...]",
        help="hybrid (as many rows as pay on this machine), ptd, none (plain decoding), or another "
        "name of docs/drafters.md, with settings. It never changes the output. Default: hybrid; "
        "with --width or --depth: ptd.",
        show_default=False,
    ),
]
Width = Annotated[
    int | None,
    typer.Option(
        metavar="W",
        help="PTD's width. With --width or --depth the rest is the paper's: width 4, depth 6, 96 "
        "draft and 60 candidate rows.",
        show_default=False,
    ),
]
Depth = Annotated[
    int | None,
    typer.Option(metavar="D", help="PTD's depth; see --width.", show_default=False),
]
Stats = Annotated[
    bool,
    typer.Option(
        "--stats",
        help="After each answer, on standard error: what each source of the hybrid drafter "
        "proposed, and what of it was accepted.",
    ),
]
MaxNewTokens = Annotated[
    int,
    typer.Option(metavar="N", help="Most tokens of an answer."),
]
Stop = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TEXT",
        help="End an answer in front of this text. May be given several times.",
        show_default=False,
    ),
]
# Without a value, what --generation-config says.
Temperature = Annotated[
    float | None, typer.Option(help="0 is greedy. Default: 0.", show_default=False)
]
TopK = Annotated[
    int | None,
    typer.Option(help="Keep the k likeliest tokens. Default: 0, off.", show_default=False),
]
TopP = Annotated[
    float | None,
    typer.Option(
        help="Keep the likeliest tokens of this mass. Default: 1, off.", show_default=False
    ),
]
MinP = Annotated[
    float | None,
    typer.Option(
        help="Keep tokens at least this fraction as likely as the likeliest. Default: 0, off.",
        show_default=False,
    ),
]
RepetitionPenalty = Annotated[
    float | None,
    typer.Option(
        help="Divide positive logits of tokens that prompt or answer hold by this, and multiply "
        "negative ones. Default: 1, off.",
        show_default=False,
    ),
]
PresencePenalty = Annotated[
    float, typer.Option(help="Taken off the logits of tokens that the answer holds; 0 is off.")
]
FrequencyPenalty = Annotated[
    float, typer.Option(help="Taken off them for each time that it holds them; 0 is off.")
]
MinNewTokens = Annotated[
    int, typer.Option(metavar="N", help="Tokens before an end-of-sequence or stop id may come.")
]
GenerationConfig = Annotated[
    str,
    typer.Option(
        help="auto: the model's generation_config.json fills what is not set here (--temperature, "
        "--top-k, --top-p, --min-p, --repetition-penalty and stop strings), and a warning says "
        "with what; none: it does not."
    ),
]
Seed = Annotated[
    int,
    typer.Option(help="The same seed and settings give the same output, with any drafter."),
]
Chat = Annotated[
    bool | None,
    typer.Option(
        "--chat/--raw",
        help="Wrap prompts in the model's chat template, or complete them as they are. Default: "
        "chat where the model has a template.",
        show_default=False,
    ),
]
PROMPTS_HELP = (
    "A file of prompts. *.jsonl, *.ndjson, *.json, or a first line that begins with '{': JSON "
    'lines with "turns" (the first is used) or else "prompt", and optionally "id". Any other file: '
    "one prompt a line, empty lines skipped."
)
PromptsFile = Annotated[
    Path | None,
    typer.Option("--prompts", metavar="FILE", help=PROMPTS_HELP, show_default=False),
]
PromptsFiles = Annotated[
    list[Path],
    typer.Option(
        "--prompts",
        metavar="FILE",
        help=f"{PROMPTS_HELP} May be given several times.",
        show_default=False,
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(metavar="K", help="Take the first K prompts of a file only.", show_default=False),
]


def check_stats(stats: bool, spec: str | PTDConfig) -> None:
    """Raise ConfigError for --stats with a drafter that counts nothing by source."""
    if not stats:
        return
    from ptd_engine.drafters import resolve

    if not isinstance(resolve(spec, "cpu"), HybridConfig):
        raise ConfigError.for_field(
            "--stats",
            stats,
            "nothing with a drafter other than hybrid",
            "Only hybrid counts what its sources propose: use --drafter hybrid, or leave it out.",
        )


def graphs_mode(value: str) -> GraphsMode:
    """--graphs, checked."""
    from ptd_engine.runner import check_graphs

    return check_graphs(value)


def drafter_name(name: str | None, width: int | None, depth: int | None) -> str:
    """--drafter, or what stands for it where it is not given: a shape asks for ptd's tree."""
    if name is not None:
        return name
    return "hybrid" if width is None and depth is None else "ptd"


def drafter_spec(name: str | None, width: int | None, depth: int | None) -> str | PTDConfig:
    """What --drafter, --width and --depth mean together.

    Raises:
        ConfigError: a tree's shape for a drafter that has none, or a shape out of range.
    """
    name = drafter_name(name, width, depth)
    given = {"width": width, "depth": depth}
    shape = {option: value for option, value in given.items() if value is not None}
    if not shape:
        return name
    if name != "ptd":
        option, value = next(iter(shape.items()))
        raise ConfigError.for_field(
            f"--{option}",
            value,
            f"nothing while --drafter is {name!r}",
            f"Only ptd has a tree to shape: use --drafter ptd, or leave out --{option}.",
        )
    paper = PTDConfig()
    return PTDConfig(
        width=paper.width if width is None else width,
        depth=paper.depth if depth is None else depth,
    )
