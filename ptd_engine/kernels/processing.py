"""`Processing`: how a request changes the logits of its verified rows, in terms of a device."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Processing:
    """What `process` does to row i, token v, in this order, all in fp32.

    1. x += bias_values[b] where bias_ids[b] == v.
    2. If v was seen, x = x * repetition where x < 0, else x / repetition.
    3. With n = output(v): x -= frequency * n, then, if n > 0, x -= presence.
    4. x = -inf where positions[i] < free_from and v is one of forbidden_ids; NaN and +inf become
       NaN, so that a broken row stays one.

    output(v) = counts[1, v] + above(v); v was seen if counts[0, v] + output(v) > 0. above(v) counts
    the tree: the rows j > 0 with bit j of mask[i] set, i itself among them, and token_ids[j] == v.
    Row 0 is the last committed token, which `counts` holds already; every row behind it is a
    token of the output. Candidates hang below candidates, so only verified rows are ever counted.

    A part that a request does not use is None, the same one through the whole request; every other
    tensor stays where it is, and its contents alone change.

    Attributes:
        token_ids: [N] int32, of the step's plan.
        mask: [N, W] int64, of the plan.
        positions: [N] int32, of the plan.
        counts: [2, V] int32 or None (no penalties): how often prompt and output, the last token
            included, hold each id. The caller adds a step's tokens before the next step.
        penalties: [4] fp32: repetition, presence, frequency, 0; None with `counts`.
        bias_ids, bias_values: [B] int32 and fp32, or None. Ids are distinct and below the limit of
            the vocabulary; -1 is no entry.
        forbidden_ids: [F] int32 or None; the same holds for them.
        free_from: [1] int32: the first position whose row may choose a forbidden id.
        logprob_ids, logprob_values: [N, 1 + k] int32 and fp32, or None; written for the verified
            rows: the chosen token, then the k likeliest ones, best first, equal ones by id; each
            with its log-softmax over the ids below the limit, in fp32 or better, of the logits as
            the model made them.
    """

    token_ids: Tensor
    mask: Tensor
    positions: Tensor
    counts: Tensor | None = None
    penalties: Tensor | None = None
    bias_ids: Tensor | None = None
    bias_values: Tensor | None = None
    forbidden_ids: Tensor | None = None
    free_from: Tensor | None = None
    logprob_ids: Tensor | None = None
    logprob_values: Tensor | None = None
