"""`ptd-engine demo`: the demo model answers with and without drafting, side by side."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from ptd_engine.cli.report import print_table, write_stream
from ptd_engine.config import SamplingParams
from ptd_engine.errors import ConfigError

if TYPE_CHECKING:
    from ptd_engine.outputs import GenerationOutput

# Structured text suits drafting; a short answer in prose gains less, and the demo says so.
DEFAULT_PROMPT = (
    "Write a Python dataclass for a book, then make a list of ten books with title, author and "
    "year."
)
MAX_SEQ_LEN = 2048
_WARM_UP_TOKENS = 8
# A second round makes the times steadier; on a busy machine the first is long enough.
_LONGEST_FIRST_ROUND_S = 20.0


def demo(
    prompt: Annotated[
        str, typer.Option(metavar="TEXT", help="What to ask the demo model.")
    ] = DEFAULT_PROMPT,
    max_new_tokens: Annotated[
        int, typer.Option(metavar="N", help="Most tokens of the answer.")
    ] = 128,
) -> None:
    """Show drafting at work: the same answer, in fewer steps.

    Answers one prompt with the demo model (fetched at first use) with and without drafting, times
    both and compares the outputs. The exit status is 1 if they differ.
    """
    if max_new_tokens < 1:
        raise ConfigError.for_field("--max-new-tokens", max_new_tokens, "an integer >= 1")
    params = SamplingParams(max_new_tokens=max_new_tokens)
    typer.echo("Loading the demo model, SmolLM2-135M-Instruct ...")
    start = time.perf_counter()
    from ptd_engine.llm import LLM

    drafted = LLM.from_pretrained("demo", max_seq_len=MAX_SEQ_LEN)
    plain = drafted.with_drafter("none")
    dtype = str(drafted.model.dtype).removeprefix("torch.")
    typer.echo(
        f"Loaded in {time.perf_counter() - start:.1f} s: "
        f"{drafted.model.num_parameters / 1e6:.0f} M parameters, "
        f"{dtype} on {drafted.model.device}.\n"
    )
    ids = drafted.encode_chat([{"role": "user", "content": prompt}])
    for side in (drafted, plain):  # first calls pay for lazy set-up: not measured
        side.generate(ids, SamplingParams(max_new_tokens=_WARM_UP_TOKENS))

    typer.echo(f"Prompt: {prompt}\n\nThe answer, with drafting:\n")
    start = time.perf_counter()
    drafted_runs = [write_stream(drafted.stream(ids, params))]
    typer.echo("\nPlain decoding answers the same prompt, one token a step ...")
    plain_runs = [plain.generate(ids, params)]
    if time.perf_counter() - start < _LONGEST_FIRST_ROUND_S:
        typer.echo("Both once more; of each the faster run counts ...")
        drafted_runs.append(drafted.generate(ids, params))
        plain_runs.append(plain.generate(ids, params))
    else:
        typer.echo("The machine is slow or busy: one run of each, so the times are rough.")
    typer.echo()
    identical = all(run.token_ids == plain_runs[0].token_ids for run in drafted_runs + plain_runs)
    runs = "best of two runs" if len(drafted_runs) > 1 else "one run"
    _print(_fastest(drafted_runs), _fastest(plain_runs), f"Greedy decoding, {runs}")
    typer.echo(f"output identical: {'yes' if identical else 'no'}")
    if prompt == DEFAULT_PROMPT:
        typer.echo(
            "The prompt asks for structured text, where drafting gains most; --prompt asks others."
        )
    if not identical:
        raise typer.Exit(1)


def _fastest(runs: list[GenerationOutput]) -> GenerationOutput:
    return min(runs, key=lambda run: run.stats.total_time_s)


def _print(drafted: GenerationOutput, plain: GenerationOutput, title: str) -> None:
    from rich.table import Table

    table = Table("", title=title)
    for column in ("drafted", "plain"):
        table.add_column(column, justify="right")
    sides = (drafted.stats, plain.stats)
    table.add_row("tokens", *(str(stats.tokens) for stats in sides))
    table.add_row("steps", *(str(stats.steps) for stats in sides))
    table.add_row("tokens per step", *(f"{stats.decoding_efficiency:.2f}" for stats in sides))
    table.add_row("tokens/s", *(f"{stats.tokens_per_second:.1f}" for stats in sides))
    table.add_row("time to first token", *(f"{s.time_to_first_token_s:.3f} s" for s in sides))
    print_table(table)
    speed_up = plain.stats.total_time_s / drafted.stats.total_time_s
    typer.echo(f"speed-up: {speed_up:.2f}x")
