"""Execution of steps: owns memory and device order, knows no algorithm."""

from ptd_engine.runner.base import ModelRunner
from ptd_engine.runner.buffers import PlanView, StepBuffers
from ptd_engine.runner.eager import EagerRunner
from ptd_engine.runner.graph import GraphBackend, GraphRunner
from ptd_engine.runner.make import (
    GRAPHS_MODES,
    GraphsMode,
    check_graphs,
    check_graphs_on,
    make_runner,
)
from ptd_engine.runner.protocol import PromptObserver, Runner, StepCounts
from ptd_engine.runner.request_logits import LogitRules, RequestLogits
from ptd_engine.runner.step_times import StepTimes, measure_step_times

__all__ = [
    "GRAPHS_MODES",
    "EagerRunner",
    "GraphBackend",
    "GraphRunner",
    "GraphsMode",
    "LogitRules",
    "ModelRunner",
    "PlanView",
    "PromptObserver",
    "RequestLogits",
    "Runner",
    "StepBuffers",
    "StepCounts",
    "StepTimes",
    "check_graphs",
    "check_graphs_on",
    "make_runner",
    "measure_step_times",
]
