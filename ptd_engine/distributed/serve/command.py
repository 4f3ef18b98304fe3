"""`python -m ptd_engine.distributed.serve`: replicas of one model, on this machine or a cluster."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated

import typer

from ptd_engine.distributed.serve.deploy import deploy
from ptd_engine.distributed.serve.scaling import Scaling
from ptd_engine.errors import PTDError
from ptd_engine.llm import LLM
from ptd_engine.server import ServerConfig


def serve(
    model: Annotated[str, typer.Argument(help="A directory, a .gguf file, a hub id, or demo.")],
    replicas: Annotated[int, typer.Option(metavar="N", help="Engines.")] = 1,
    min_replicas: Annotated[
        int | None, typer.Option(metavar="N", help="Never fewer. Default: --replicas.")
    ] = None,
    max_replicas: Annotated[
        int | None, typer.Option(metavar="N", help="As many when there is work. Default: fixed.")
    ] = None,
    target_ongoing_requests: Annotated[
        float, typer.Option(metavar="N", help="Requests a replica that autoscaling aims at.")
    ] = 2.0,
    upscale_delay: Annotated[
        float, typer.Option(metavar="SECONDS", help="Of too much work, before a replica is added.")
    ] = 30.0,
    downscale_delay: Annotated[
        float, typer.Option(metavar="SECONDS", help="Of too little, before one is removed.")
    ] = 600.0,
    max_ongoing_requests: Annotated[
        int, typer.Option(metavar="N", help="Requests a replica takes before others get them.")
    ] = 8,
    cpus: Annotated[float, typer.Option(metavar="N", help="Cores of a replica.")] = 1.0,
    gpus: Annotated[float, typer.Option(metavar="N", help="GPUs of a replica.")] = 0.0,
    address: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="A cluster of Ray. Default: RAY_ADDRESS, else here."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="PTD_ENGINE_API_KEY", help="Ask for this key.", show_default=False),
    ] = None,
    served_model_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="What requests call the model.")
    ] = None,
    max_queue: Annotated[
        int, typer.Option(metavar="N", help="Requests that may wait for a replica.")
    ] = 64,
    request_timeout: Annotated[float, typer.Option(metavar="SECONDS")] = 600.0,
    shutdown_timeout: Annotated[float, typer.Option(metavar="SECONDS")] = 30.0,
    drafter: Annotated[
        str, typer.Option(metavar="SPEC", help="As of ptd-engine serve.")
    ] = "hybrid",
    dtype: Annotated[str, typer.Option(help="As of ptd-engine serve.")] = "auto",
    device: Annotated[str, typer.Option(help="As of ptd-engine serve.")] = "auto",
    kernels: Annotated[str, typer.Option(help="As of ptd-engine serve.")] = "auto",
    num_threads: Annotated[int | None, typer.Option(metavar="N")] = None,
    max_seq_len: Annotated[int | None, typer.Option(metavar="N")] = None,
) -> None:
    """Serve a model by several engines behind one address, with OpenAI's interface.

    Ends with Ctrl-C. A conversation's requests go to one replica.
    """
    config = ServerConfig(
        model_name=served_model_name or Path(model).name or model,
        host=host,
        port=port,
        api_key=api_key,
        max_queue=max_queue,
        request_timeout_s=request_timeout,
        shutdown_timeout_s=shutdown_timeout,
    )
    scaling = Scaling(
        replicas=replicas,
        min_replicas=min_replicas,
        max_replicas=max_replicas,
        target_ongoing_requests=target_ongoing_requests,
        upscale_delay_s=upscale_delay,
        downscale_delay_s=downscale_delay,
        max_ongoing_requests=max_ongoing_requests,
        cpus=cpus,
        gpus=gpus,
    )
    load = functools.partial(
        LLM.from_pretrained,
        model,
        dtype=dtype,
        device=device,
        max_seq_len=max_seq_len,
        drafter=drafter,
        kernels=kernels,
        num_threads=num_threads,
        reuse_prefix=True,
    )
    deploy(load, config, scaling, address=address, blocking=True)


def main() -> None:
    """Run the command line and exit with its status; mistakes are told without a traceback."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(serve)
    try:
        app(prog_name="python -m ptd_engine.distributed.serve")
    except PTDError as error:
        typer.echo(f"error: {error}", err=True)
        raise SystemExit(2) from error
