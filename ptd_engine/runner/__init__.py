"""Execution of steps: owns memory and device order, knows no algorithm."""

from ptd_engine.runner.buffers import PlanView, StepBuffers
from ptd_engine.runner.eager import EagerRunner, PromptObserver, Runner
from ptd_engine.runner.request_logits import LogitRules, RequestLogits
from ptd_engine.runner.step_times import StepTimes, measure_step_times

__all__ = [
    "EagerRunner",
    "LogitRules",
    "PlanView",
    "PromptObserver",
    "RequestLogits",
    "Runner",
    "StepBuffers",
    "StepTimes",
    "measure_step_times",
]
