"""Processing of logits in plain torch: bias, penalties, forbidden ids, log-probabilities.

Every step is elementwise, and the counts are integers: what a row gets does not depend on whether
its ancestors are counted from the tree or from the output, nor on the other rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ptd_engine.kernels.processing import Processing


def process(logits: Tensor, processing: Processing, *, first_row: int = 0) -> None:
    """See `ops.Process`."""
    if processing.bias_ids is not None and processing.bias_values is not None:
        _add(logits, processing.bias_ids, processing.bias_values)
    if processing.counts is not None and processing.penalties is not None:
        _penalise(logits, processing.counts, processing.penalties, processing, first_row)
    if processing.forbidden_ids is not None and processing.free_from is not None:
        positions = processing.positions[first_row : first_row + logits.shape[0]]
        early = (positions < processing.free_from)[:, None]
        # Adding -inf, for it leaves NaN and turns +inf into it.
        _add(logits, processing.forbidden_ids, torch.where(early, -math.inf, 0.0))


def _add(logits: Tensor, ids: Tensor, values: Tensor) -> None:
    """logits[:, ids] += values ([B] or [M, B or 1]); an id of -1 adds nothing."""
    added = torch.where(ids < 0, 0.0, values).expand(logits.shape[0], ids.shape[0])
    logits.index_add_(1, ids.clamp(min=0).long(), added)


def _penalise(
    logits: Tensor, counts: Tensor, penalties: Tensor, processing: Processing, first_row: int
) -> None:
    counts = counts[:, : logits.shape[1]]
    last = first_row + logits.shape[0]  # ancestors lie in front of a row
    tokens = processing.token_ids[1:last].long()
    above = _above(processing.mask, first_row, last)
    if logits.device.type != "cpu":
        _apply(logits, counts, penalties, tokens, above)
        return
    # A few hundred ids are in play, of tens of thousands. A GPU cannot size a tensor by what it
    # holds without a sync.
    ids = counts.sum(0).index_fill_(0, tokens, 1).nonzero().squeeze(1)
    part = logits[:, ids]
    _apply(part, counts[:, ids], penalties, torch.searchsorted(ids, tokens), above)
    logits[:, ids] = part


def _apply(
    logits: Tensor, counts: Tensor, penalties: Tensor, tokens: Tensor, above: Tensor
) -> None:
    """Points 2 and 3. tokens [A]: columns of the tree's; above [M, A] int32: what each row sees."""
    repetition, presence, frequency = penalties[0], penalties[1], penalties[2]
    rows = logits.shape[0]
    output = counts[1].expand(rows, -1).scatter_add(1, tokens.expand(rows, -1), above)
    penalised = torch.where(logits < 0, logits * repetition, logits / repetition)
    logits.copy_(torch.where(counts[0] + output > 0, penalised, logits))
    logits -= frequency * output
    logits -= presence * (output > 0)


def _above(mask: Tensor, first_row: int, last: int) -> Tensor:
    """[rows, last - 1] int32: is row 1 + j the row or an ancestor of it."""
    node = torch.arange(1, last, device=mask.device)
    words = mask[first_row:last].index_select(1, node >> 6)
    return ((words >> (node & 63)) & 1).int()


def write_logprobs(
    raw: Tensor,
    tokens: Tensor,
    processing: Processing,
    first_row: int = 0,
    largest: Callable[[Tensor, Tensor], None] | None = None,
) -> None:
    """Fill the rows of `logprob_ids` and `logprob_values`.

    Args:
        raw: [M, V] fp32, logits as the model made them.
        tokens: [M], the chosen ids; -1 in rows that failed.
        processing: holds the two tensors, or None for both: nothing is done.
        first_row: the row of the step that raw[0] is.
        largest: of a backend that has it: puts the ids of the k largest of each row of the first
            argument, best first, equal ones by id, into the second's columns 1 to k.
    """
    if processing.logprob_ids is None or processing.logprob_values is None:
        return
    ids = processing.logprob_ids[first_row : first_row + raw.shape[0]]
    if ids.shape[1] > 1:
        (largest or _largest)(raw, ids)
    ids[:, 0] = tokens
    values = raw.gather(1, ids.clamp(min=0).long()) - raw.logsumexp(-1, keepdim=True)
    processing.logprob_values[first_row : first_row + raw.shape[0]] = values


def _largest(logits: Tensor, out: Tensor) -> None:
    """`largest` above, by integers that fall with the logit and then rise with the id."""
    bits = (logits + 0.0).view(torch.int32).long()  # of -0 and 0 the same
    rising = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    ids = torch.arange(logits.shape[1], device=logits.device)
    out[:, 1:] = (rising * 2**32 - ids).topk(out.shape[1] - 1, dim=-1).indices
