"""`ptd-engine serve`: one model over HTTP, with OpenAI's interface."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from ptd_engine.cli import options as opt
from ptd_engine.cli.ranks import join_launcher
from ptd_engine.errors import ConfigError, UnavailableError

_NEEDS = ("fastapi", "uvicorn", "prometheus_client")


def serve(
    model: opt.Model,
    host: Annotated[
        str, typer.Option(help="Address to listen at; 0.0.0.0 is reachable from outside.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="PTD_ENGINE_API_KEY",
            show_envvar=True,
            help="Ask for this key ('Authorization: Bearer KEY'). Other users of the machine see "
            "options, not the variable.",
            show_default=False,
        ),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A name that requests may use for a server at a loopback address, say behind a "
            "proxy. May be given several times.",
            show_default=False,
        ),
    ] = None,
    served_model_name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What requests call the model. Default: MODEL, of a path the last part.",
            show_default=False,
        ),
    ] = None,
    max_queue: Annotated[
        int, typer.Option(metavar="N", help="Requests that may wait; more are refused with 429.")
    ] = 64,
    request_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Longest time of a request, waiting included.")
    ] = 600.0,
    shutdown_timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="How long the running request may go on at the end."),
    ] = 30.0,
    max_body_mib: Annotated[
        float, typer.Option(metavar="MIB", help="Largest body of a request.")
    ] = 2.0,
    default_max_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="For requests without max_tokens. Default: to the context limit for a chat, 16 "
            "for a completion.",
            show_default=False,
        ),
    ] = None,
    log_format: Annotated[str, typer.Option(help="json or text, to standard error.")] = "json",
    reuse_prefix: Annotated[
        bool,
        typer.Option(help="Do not compute again what a prompt shares with the last request."),
    ] = True,
    generation_config: opt.GenerationConfig = "auto",
    drafter: opt.Drafter = None,
    width: opt.Width = None,
    depth: opt.Depth = None,
    dtype: opt.Dtype = "auto",
    device: opt.Device = "auto",
    kernels: opt.Kernels = "auto",
    graphs: opt.Graphs = "auto",
    num_threads: opt.NumThreads = None,
    max_seq_len: opt.MaxSeqLen = None,
    tensor_parallel: opt.TensorParallel = 1,
) -> None:
    """Serve a model over HTTP with OpenAI's interface, and a page to chat with it.

    One request runs at a time, others wait. SIGTERM and Ctrl-C let the running one end.
    """
    join_launcher(model, tensor_parallel)
    missing = [name for name in _NEEDS if find_spec(name) is None]
    if missing:
        raise UnavailableError(
            f"serve needs {', '.join(missing)}: pip install 'ptd-engine[serve]'."
        )
    spec = opt.drafter_spec(drafter, width, depth)
    if not 0.001 <= max_body_mib <= 1024:
        raise ConfigError.for_field("--max-body-mib", max_body_mib, "a number from 0.001 to 1024")
    from ptd_engine.server import ServerConfig, bind, logs
    from ptd_engine.server import serve as run

    config = ServerConfig(
        model_name=served_model_name or Path(model).name or model,
        host=host,
        port=port,
        api_key=api_key,
        allowed_hosts=tuple(allowed_host or ()),
        max_queue=max_queue,
        max_body_bytes=round(max_body_mib * 2**20),
        request_timeout_s=request_timeout,
        shutdown_timeout_s=shutdown_timeout,
        default_max_tokens=default_max_tokens,
        log_format=log_format,
    )
    listener = bind(host, port)  # before the model is read, which takes its time
    logs.configure(log_format)
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
        reuse_prefix=reuse_prefix,
    ) as llm:
        llm.warmup(sampling=True)  # no request waits for a graph to be captured
        run(llm, config, listener)
