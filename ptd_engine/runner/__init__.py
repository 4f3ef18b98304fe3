"""Execution of steps: owns memory and device order, knows no algorithm."""

from ptd_engine.runner.buffers import PlanView, StepBuffers
from ptd_engine.runner.eager import EagerRunner, Runner

__all__ = ["EagerRunner", "PlanView", "Runner", "StepBuffers"]
