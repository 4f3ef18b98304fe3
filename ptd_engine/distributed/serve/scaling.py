"""How many replicas there are, and what each has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ptd_engine.checks import check_float, check_int
from ptd_engine.errors import ConfigError

_MOST = 10_000
_LOOK_BACK_S = 30.0  # Ray Serve's
_LEAST_LOOK_BACK_S = 11.0  # above the 10 s between two of Ray Serve's counts, as it asks for


@dataclass(frozen=True, slots=True)
class Scaling:
    """Replicas of an application.

    Attributes:
        replicas: how many there are; with `max_replicas`, how many at first.
        min_replicas, max_replicas: Ray Serve adds and removes replicas within these bounds. Both
            None: it does not.
        target_ongoing_requests: requests a replica, running and waiting, that Ray Serve aims at.
        upscale_delay_s, downscale_delay_s: how long there must be too much, or too little, to do
            before Ray Serve adds or removes a replica.
        max_ongoing_requests: requests that a replica takes, the running one included. A
            conversation's next request goes to another replica where its own has so many.
        cpus, gpus: what Ray sets aside for a replica; fractions are shares.
        health_period_s, health_timeout_s: how often a replica is asked whether its engine lives,
            and after how long without an answer it is replaced.
    """

    replicas: int = 1
    min_replicas: int | None = None
    max_replicas: int | None = None
    target_ongoing_requests: float = 2.0
    upscale_delay_s: float = 30.0
    downscale_delay_s: float = 600.0
    max_ongoing_requests: int = 8
    cpus: float = 1.0
    gpus: float = 0.0
    health_period_s: float = 5.0
    health_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        check_int("replicas", self.replicas, 1, _MOST)
        check_int("max_ongoing_requests", self.max_ongoing_requests, 1, 100_000)
        check_float("target_ongoing_requests", self.target_ongoing_requests, 0.01, 1e6)
        check_float("upscale_delay_s", self.upscale_delay_s, 0.0, 1e6)
        check_float("downscale_delay_s", self.downscale_delay_s, 0.0, 1e6)
        check_float("cpus", self.cpus, 0.0, 1e6)
        check_float("gpus", self.gpus, 0.0, 1e6)
        check_float("health_period_s", self.health_period_s, 0.1, 1e6)
        check_float("health_timeout_s", self.health_timeout_s, 0.1, 1e6)
        if self.max_replicas is None:
            if self.min_replicas is not None:
                raise ConfigError.for_field(
                    "min_replicas", self.min_replicas, "None without max_replicas", "Set both."
                )
            return
        check_int("max_replicas", self.max_replicas, self.replicas, _MOST, "Not below replicas.")
        if self.min_replicas is not None:
            check_int("min_replicas", self.min_replicas, 1, self.replicas, "Not above replicas.")

    def options(self) -> dict[str, Any]:
        """The same as options of a deployment of Ray Serve."""
        number: dict[str, Any] = {"num_replicas": self.replicas}
        if self.max_replicas is not None:
            bounds = {
                "min_replicas": self.replicas if self.min_replicas is None else self.min_replicas,
                "initial_replicas": self.replicas,
                "max_replicas": self.max_replicas,
                "target_ongoing_requests": self.target_ongoing_requests,
                "upscale_delay_s": self.upscale_delay_s,
                "downscale_delay_s": self.downscale_delay_s,
                # What is decided by: a mean over about the delay.
                "look_back_period_s": min(
                    _LOOK_BACK_S, max(_LEAST_LOOK_BACK_S, self.upscale_delay_s)
                ),
            }
            number = {"autoscaling_config": bounds}
        return {
            **number,
            "max_ongoing_requests": self.max_ongoing_requests,
            "health_check_period_s": self.health_period_s,
            "health_check_timeout_s": self.health_timeout_s,
            "ray_actor_options": {"num_cpus": self.cpus, "num_gpus": self.gpus},
        }
