"""`ptd-engine generate`: answers to one or several prompts."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ptd_engine.cli import options as opt
from ptd_engine.cli.prompts import PromptItem, collect
from ptd_engine.cli.ranks import join_launcher
from ptd_engine.cli.report import summary, write_json, write_sources, write_stream
from ptd_engine.cli.requests import chat_form, encode
from ptd_engine.config import SamplingParams
from ptd_engine.errors import ConfigError, DistributedError, PTDError

if TYPE_CHECKING:
    from ptd_engine.llm import LLM


def generate(
    model: opt.Model,
    prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The prompt.", show_default=False)
    ] = None,
    prompts: opt.PromptsFile = None,
    limit: opt.Limit = None,
    chat: opt.Chat = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print one object a prompt and nothing else: id, text, token_ids, finish_reason, "
            "usage, stats, with --logprobs also logprobs; or id, error.",
        ),
    ] = False,
    logprobs: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            help="With --json: the log-probability of every token, and the K likeliest ones.",
            show_default=False,
        ),
    ] = None,
    max_new_tokens: opt.MaxNewTokens = 128,
    stop: opt.Stop = None,
    temperature: opt.Temperature = None,
    top_k: opt.TopK = None,
    top_p: opt.TopP = None,
    min_p: opt.MinP = None,
    repetition_penalty: opt.RepetitionPenalty = None,
    presence_penalty: opt.PresencePenalty = 0.0,
    frequency_penalty: opt.FrequencyPenalty = 0.0,
    min_new_tokens: opt.MinNewTokens = 0,
    seed: opt.Seed = 0,
    generation_config: opt.GenerationConfig = "auto",
    drafter: opt.Drafter = None,
    width: opt.Width = None,
    depth: opt.Depth = None,
    stats: opt.Stats = False,
    dtype: opt.Dtype = "auto",
    device: opt.Device = "auto",
    kernels: opt.Kernels = "auto",
    graphs: opt.Graphs = "auto",
    num_threads: opt.NumThreads = None,
    max_seq_len: opt.MaxSeqLen = None,
    tensor_parallel: opt.TensorParallel = 1,
) -> None:
    """Answer a prompt, or a file of prompts, on one engine.

    The text streams to standard output, a summary of each answer goes to standard error. A bad
    prompt of a file is reported, the others go on, and the exit status is 1.
    """
    join_launcher(model, tensor_parallel)
    items = collect(prompt, [] if prompts is None else [prompts], limit)
    spec = opt.drafter_spec(drafter, width, depth)
    opt.check_stats(stats, spec)
    params = SamplingParams(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        min_new_tokens=min_new_tokens,
        seed=seed,
        stop=stop or None,
        logprobs=logprobs,
    )
    if logprobs is not None and not as_json:
        raise ConfigError.for_field("--logprobs", logprobs, "nothing without --json")
    from ptd_engine.llm import LLM

    with LLM.from_pretrained(
        model,
        dtype=dtype,
        device=device,
        max_seq_len=max_seq_len,
        drafter=spec,
        kernels=kernels,
        graphs=opt.graphs_mode(graphs),
        num_threads=num_threads,
        tensor_parallel=tensor_parallel,
        generation_config=generation_config,
    ) as llm:
        as_chat = chat_form(llm, chat)
        answer = _answer_json if as_json else _answer_text
        failures = 0
        for item in items:
            if len(items) > 1 and not as_json:
                typer.echo(f"--- {item.id}")
            try:
                answer(llm, item, params, as_chat)
                if stats:
                    write_sources(llm.drafter)
            except PTDError as error:
                if prompts is None or isinstance(error, DistributedError):  # no other will succeed
                    raise
                failures += 1
                if as_json:
                    write_json({"id": item.id, "error": str(error)})
                else:
                    typer.echo(f"error: {item.id}: {error}", err=True)
    if failures:
        raise typer.Exit(1)


def _answer_text(llm: LLM, item: PromptItem, params: SamplingParams, as_chat: bool) -> None:
    ids = encode(llm, item.text, as_chat=as_chat)
    typer.echo(summary(write_stream(llm.stream(ids, params))), err=True)


def _answer_json(llm: LLM, item: PromptItem, params: SamplingParams, as_chat: bool) -> None:
    output = llm.generate(encode(llm, item.text, as_chat=as_chat), params)
    reported = {}
    if output.logprobs is not None:
        reported["logprobs"] = [entry.as_dict() for entry in output.logprobs]
    write_json(
        {
            "id": item.id,
            "text": output.text,
            "token_ids": output.token_ids,
            "finish_reason": output.finish_reason,
            "usage": asdict(output.usage),
            "stats": output.stats.as_dict(),
            **reported,
        }
    )
