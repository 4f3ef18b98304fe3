"""`ptd-engine chat`: a conversation in the terminal."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import typer

from ptd_engine.cli import options as opt
from ptd_engine.cli.ranks import join_launcher
from ptd_engine.cli.report import write_sources
from ptd_engine.cli.requests import chat_form
from ptd_engine.config import SamplingParams
from ptd_engine.errors import DistributedError, PTDError

if TYPE_CHECKING:
    from ptd_engine.llm import LLM
    from ptd_engine.outputs import GenerationOutput

_HELP = "/reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C cancels an answer."


def chat(
    model: opt.Model,
    max_new_tokens: opt.MaxNewTokens = 512,
    temperature: opt.Temperature = None,
    top_k: opt.TopK = None,
    top_p: opt.TopP = None,
    min_p: opt.MinP = None,
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
    """Talk to an instruction-tuned model.

    /reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C cancels an answer.
    """
    join_launcher(model, tensor_parallel)
    spec = opt.drafter_spec(drafter, width, depth)
    opt.check_stats(stats, spec)
    params = SamplingParams(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
    )
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
        chat_form(llm, True)
        with contextlib.suppress(ImportError):  # it gives input() line editing and history
            import readline  # noqa: F401
        typer.echo(_HELP)
        _converse(Conversation(llm, params, stats=stats))


class Conversation:
    """The messages so far; an answer that fails leaves them as they were."""

    def __init__(self, llm: LLM, params: SamplingParams, *, stats: bool = False) -> None:
        self._llm = llm
        self._stats = stats
        self._params = params
        self._messages: list[dict[str, str]] = []

    def reset(self) -> None:
        """Forget everything said."""
        self._messages.clear()

    def answer(self, text: str) -> None:
        """Stream the answer to a message; Ctrl-C ends it, and what was said of it is kept.

        Raises:
            PTDError: the message cannot be answered.
        """
        asked = [*self._messages, {"role": "user", "content": text}]
        ids = self._llm.encode_chat(asked)
        limit = self._llm.engine.max_seq_len
        if len(ids) >= limit:
            typer.echo(
                f"The context is full: with this message the conversation has {len(ids)} tokens, "
                f"and the limit is {limit - 1} (--max-seq-len {limit}). The message was not "
                "taken: shorten it, or /reset and begin anew."
            )
            return
        said: list[str] = []
        output: GenerationOutput | None = None
        try:
            with self._llm.stream(ids, self._params) as chunks:
                for chunk in chunks:
                    said.append(chunk.text)
                    typer.echo(chunk.text, nl=False)
                    output = chunk.output
        except KeyboardInterrupt:
            typer.echo(" [cancelled]", nl=False)
        finally:
            typer.echo()
        if self._stats:
            write_sources(self._llm.drafter)
        if answer := "".join(said):
            self._messages = [*asked, {"role": "assistant", "content": answer}]
        if output is not None and output.finish_reason == "length":
            self._explain_cut(output.usage.total_tokens >= limit)

    def _explain_cut(self, context_full: bool) -> None:
        if context_full:
            typer.echo("[the context is full: the answer was cut. /reset begins anew.]")
        else:
            typer.echo(f"[cut after --max-new-tokens {self._params.max_new_tokens}]")


def _converse(conversation: Conversation) -> None:
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            typer.echo()
            return
        except KeyboardInterrupt:
            typer.echo("\n(Ctrl-D or /exit leaves)")
            continue
        if line == "/exit":
            return
        if line == "/reset":
            conversation.reset()
            typer.echo("The conversation is forgotten.")
        elif line.startswith("/"):
            typer.echo(f"Unknown command {line.split()[0]}. {_HELP}")
        elif line:
            try:
                conversation.answer(line)
            except DistributedError:  # no further message can be answered
                raise
            except PTDError as error:
                typer.echo(f"error: {error}", err=True)
