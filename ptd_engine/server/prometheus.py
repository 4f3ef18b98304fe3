"""What /metrics tells, in Prometheus' text format."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ptd_engine.metrics import GenerationStats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_TOKEN_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_TOKENS_A_STEP = (1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0)


class Metrics:
    """The metrics of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "ptd_requests", "Requests by HTTP status.", ("endpoint", "status"), registry=registry
        )
        self.refused = Counter(
            "ptd_requests_refused", "Requests that found the queue full.", registry=registry
        )
        self.cancelled = Counter(
            "ptd_requests_cancelled",
            "Requests given up, by reason and by what happened to them then.",
            ("reason", "phase"),
            registry=registry,
        )
        self.waiting = Gauge("ptd_requests_waiting", "Requests in the queue.", registry=registry)
        self.running = Gauge("ptd_requests_running", "Requests in the engine.", registry=registry)
        self.kv_use = Gauge(
            "ptd_kv_cache_usage_ratio",
            "Rows of the running request over the context limit.",
            registry=registry,
        )
        self.queue_time = Histogram(
            "ptd_queue_time_seconds",
            "From a request's arrival to its first step.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.ttft = Histogram(
            "ptd_time_to_first_token_seconds",
            "From a request's arrival to its first token.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.tpot = Histogram(
            "ptd_time_per_output_token_seconds",
            "Of a request: first to last token, over the tokens after the first.",
            buckets=_TOKEN_SECONDS,
            registry=registry,
        )
        self.inter_token = Histogram(
            "ptd_inter_token_latency_seconds",
            "Of a token: its step's time over the step's tokens; without the first step's.",
            buckets=_TOKEN_SECONDS,
            registry=registry,
        )
        self.latency = Histogram(
            "ptd_request_latency_seconds",
            "From a request's arrival to its last token.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.prompt_tokens = Counter(
            "ptd_prompt_tokens", "Prompt tokens of served requests.", registry=registry
        )
        self.cached_tokens = Counter(
            "ptd_prompt_tokens_reused", "Of them, not computed again.", registry=registry
        )
        self.generation_tokens = Counter(
            "ptd_generation_tokens", "Tokens generated, cancelled ones too.", registry=registry
        )
        self.steps = Counter("ptd_steps", "Steps of served requests.", registry=registry)
        self.drafts = Counter(
            "ptd_spec_decode_num_drafts", "Steps that had candidates.", registry=registry
        )
        self.draft_tokens = Counter(
            "ptd_spec_decode_num_draft_tokens", "Candidates verified.", registry=registry
        )
        self.accepted = Counter(
            "ptd_spec_decode_num_accepted_tokens", "Candidates accepted.", registry=registry
        )
        self.accepted_by_position = Counter(
            "ptd_spec_decode_num_accepted_tokens_per_pos",
            "Candidates accepted, by depth in the tree.",
            ("position",),
            registry=registry,
        )
        self.efficiency = Histogram(
            "ptd_decoding_efficiency",
            "Tokens a step, of a request.",
            buckets=_TOKENS_A_STEP,
            registry=registry,
        )

    def note_step(self, tokens: int, seconds: float | None) -> None:
        """Count a step's tokens and how long each took; None for the first step."""
        self.generation_tokens.inc(tokens)
        if seconds is not None:
            for _ in range(tokens):
                self.inter_token.observe(seconds / tokens)

    def note_output(self, prompt_tokens: int, stats: GenerationStats) -> None:
        """Count a request that was served."""
        self.prompt_tokens.inc(prompt_tokens)
        self.cached_tokens.inc(stats.reused_tokens)
        self.steps.inc(stats.steps)
        self.drafts.inc(stats.hit_steps)
        self.draft_tokens.inc(stats.candidate_nodes)
        self.accepted.inc(stats.accepted)
        for position, count in enumerate(accepted_per_position(stats)):
            self.accepted_by_position.labels(position).inc(count)
        if stats.steps:
            self.efficiency.observe(stats.decoding_efficiency)

    def text(self) -> bytes:
        """The exposition."""
        return generate_latest(self.registry)


def accepted_per_position(stats: GenerationStats) -> list[int]:
    """[k]: steps that accepted a candidate at depth k + 1."""
    counted = stats.acceptance_histogram
    return [sum(counted[depth:]) for depth in range(1, len(counted))]
