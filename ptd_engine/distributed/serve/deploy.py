"""Making the application of Ray Serve, and running it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

from ptd_engine.distributed.serve.scaling import Scaling
from ptd_engine.errors import ConfigError, UnavailableError
from ptd_engine.llm import LLM
from ptd_engine.server import ServerConfig, bind

_ROUTER = "ray.serve.experimental.consistent_hash_router:ConsistentHashRouter"
_NAME = "ptd-engine"
_NEVER_S = 1e9  # The router wants nothing of a replica; the ingress asks by the same hook.


def build(
    load: Callable[[], LLM], config: ServerConfig | None = None, scaling: Scaling | None = None
) -> Any:
    """The application, for `ray.serve.run` or a configuration file of Ray Serve.

    Args:
        load: makes the engine of a replica, in the replica's process.
        config: limits, names, access. Its host and port are where Ray Serve listens, which
            `deploy` sees to; `max_queue` counts what waits for a free replica.
        scaling: how many replicas.

    Raises:
        UnavailableError: Ray Serve is not installed.
    """
    if find_spec("ray") is None:
        raise UnavailableError("Replicas need Ray Serve: pip install 'ptd-engine[ray]'.")
    from ray import serve
    from ray.serve.config import RequestRouterConfig

    from ptd_engine.distributed.serve.ingress import Ingress
    from ptd_engine.distributed.serve.replica import EngineReplica
    from ptd_engine.distributed.serve.wire import INGRESS

    config = ServerConfig() if config is None else config
    scaling = Scaling() if scaling is None else scaling
    engines = serve.deployment(
        EngineReplica,
        **scaling.options(),
        max_queued_requests=max(1, config.max_queue),
        graceful_shutdown_timeout_s=config.shutdown_timeout_s,
        # One ring of hashes for all handles: a conversation keeps its replica while that lives and
        # has room, and moves to the next one on the ring otherwise.
        request_router_config=RequestRouterConfig(
            request_router_class=_ROUTER, request_routing_stats_period_s=_NEVER_S
        ),
    ).bind(load, config, scaling.max_ongoing_requests)
    ingress = serve.deployment(
        Ingress,
        name=INGRESS,
        num_replicas=1,
        max_ongoing_requests=1024,
        graceful_shutdown_timeout_s=config.shutdown_timeout_s,
        ray_actor_options={"num_cpus": 0},
    )
    return ingress.bind(engines, config)


def deploy(
    load: Callable[[], LLM],
    config: ServerConfig | None = None,
    scaling: Scaling | None = None,
    *,
    name: str = _NAME,
    address: str | None = None,
    blocking: bool = False,
) -> str:
    """Run the application on a cluster of Ray, or on this machine alone.

    Args:
        load: makes the engine of a replica, in the replica's process.
        config: limits, names, access, and where to listen: on every machine of the cluster that
            has a replica.
        scaling: how many replicas.
        name: of the application.
        address: of the cluster. None: the one that Ray is connected to or that RAY_ADDRESS names,
            else one that is begun here.
        blocking: return when the user interrupts, not when requests are served.

    Returns:
        The address. `ray.serve.shutdown()` ends what was begun.

    Raises:
        ConfigError: the address is taken, or this machine has too little for the replicas.
        UnavailableError: Ray Serve is not installed.
    """
    config = ServerConfig() if config is None else config
    application = build(load, config, scaling)
    import ray
    from ray import serve

    with bind(config.host, config.port) as listener:  # tells of a port that is taken; 0: a free one
        port: int = listener.getsockname()[1]
    if not ray.is_initialized():
        ray.init(address)
        if address is None and "RAY_ADDRESS" not in os.environ:
            try:
                _check_room(scaling or Scaling(), ray.cluster_resources())
            except ConfigError:
                ray.shutdown()
                raise
    serve.start(http_options={"host": config.host, "port": port})
    serve.run(application, name=name, route_prefix="/", blocking=blocking)
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"http://{host}:{port}"


def _check_room(scaling: Scaling, there: Mapping[str, float]) -> None:
    """Raise ConfigError where the first replicas cannot all start: Ray would wait for ever. Of a
    cluster nothing is known, since it may grow.
    """
    for field, name, each in (("cpus", "CPU", scaling.cpus), ("gpus", "GPU", scaling.gpus)):
        has, wanted = there.get(name, 0.0), each * scaling.replicas
        if wanted > has:
            raise ConfigError.for_field(
                field,
                each,
                f"at most {has / scaling.replicas:g} for {scaling.replicas} replicas on this "
                f"machine, where Ray found {has:g}",
                "Ask for less, for fewer replicas, or name a cluster (address, RAY_ADDRESS).",
            )
