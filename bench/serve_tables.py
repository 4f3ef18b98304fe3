"""Markdown of a `bench serve` document."""

from __future__ import annotations

from collections.abc import Sequence

from bench.renderers import Document, checked, machine, table

_SPREAD = ("p50", "p95", "p99", "max")


def render_load(documents: Sequence[Document]) -> str:
    """What became of the requests, how long they took, and the server's memory."""
    document = checked(documents[0])
    results, settings = document["results"], document["settings"]
    outcomes, memory = results["outcomes"], results["memory"]
    counts = [
        [label, f"{sum(outcomes.get(kind, 0) for kind in kinds)}"]
        for label, kinds in (
            ("answered, with the text of the engine alone", ["answered"]),
            ("answered with another text", ["wrong"]),
            ("refused: the queue was full (429, `Retry-After`)", ["refused"]),
            ("not valid, and told so (400)", ["invalid"]),
            ("left by the client", ["left"]),
            ("lost", ["lost"]),
        )
    ]
    times = [
        [label, *(f"{results[key][name] * unit:.{digits}f}" for name in _SPREAD)]
        for label, key, unit, digits in (
            ("first part of a stream, s", "time_to_first_token_s", 1.0, 2),
            ("whole answer, s", "latency_s", 1.0, 2),
            ("`/health`, ms", "health_s", 1000.0, 1),
        )
        if results[key] is not None
    ]
    return "\n\n".join(
        [
            table(("requests", f"{results['requests']}"), counts),
            table(("time, waiting included", "median", "95 %", "99 %", "largest"), times),
            f"Memory of the server: {memory['first_mib']:.1f} MiB at most in the first quarter of "
            f"the time, {memory['last_mib']:.1f} MiB in the last. Answered: "
            f"{results['tokens_per_second']:.1f} tokens/s beside what was left unread; the engine "
            f"alone, before: {results['alone_tokens_per_second']:.1f}.",
            f"{settings['clients']} clients for {settings['seconds']} s, at most "
            f"{settings['max_queue']} requests waiting, at most {settings['max_tokens']} tokens an "
            f"answer, whole and streamed, with `{settings['drafter']}` and plainly, greedy and "
            f"sampled. SmolLM2-135M-Instruct in {settings['dtype']}, the clients on the same "
            f"cores. {machine(document)}.",
        ]
    )
