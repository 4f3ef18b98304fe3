"""Token selection in plain torch: argmax, the processed distribution, inverse-CDF sampling.

Sampling works in fp64: a temperature near 0 cannot overflow, and a token id follows from (logits,
uniform) alone.
The filters sort whole rows, about 2 ms a row at 49,152 ids on one core: exactness first (a
truncated candidate list would change the distribution).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ptd_engine.kernels.ops import SelectMode
from ptd_engine.kernels.processing import Processing
from ptd_engine.kernels.torch_process import process, write_logprobs


def _masses(logits: Tensor, temperature: Tensor) -> Tensor:
    """[M, V] fp64: softmax numerators exp((x - max) / T); one-hot at the argmax where T is 0."""
    wide = logits.double()
    peak, argmax = wide.max(dim=-1, keepdim=True)
    heat = temperature.double().unsqueeze(-1)
    cold = heat <= 0
    masses = torch.exp((wide - peak) / torch.where(cold, 1.0, heat))
    ids = torch.arange(logits.shape[-1], device=logits.device)
    return torch.where(cold, (ids == argmax).double(), masses)


def _filter(masses: Tensor, logits: Tensor, sampling: Tensor) -> Tensor:
    """Zero what top_k, then top_p, then min_p leave out; `masses` and `logits` [M, V]."""
    top_k, top_p, min_p = sampling[0].double(), sampling[1].double(), sampling[2].double()
    # Sorting the logits (stable: ties in id order) ranks ids that exp() has flushed to the same 0
    # as well.
    order = logits.sort(dim=-1, descending=True, stable=True).indices
    ranked = masses.gather(-1, order)
    rank = torch.arange(masses.shape[-1], device=masses.device)
    ranked = ranked * ((top_k <= 0) | (rank < top_k))
    before = ranked.cumsum(-1) - ranked
    total = ranked.sum(-1, keepdim=True)
    ranked = ranked * ((top_p >= 1) | (before < top_p * total) | (rank == 0))
    ranked = ranked * (ranked >= min_p * ranked[:, :1])
    return torch.zeros_like(masses).scatter_(-1, order, ranked)


def probabilities(logits: Tensor, temperature: Tensor, sampling: Tensor) -> Tensor:
    """See `ops.Probabilities`."""
    masses = _filter(_masses(logits, temperature), logits, sampling)
    return masses / masses.sum(-1, keepdim=True)


def select(
    logits: Tensor,
    temperature: Tensor,
    uniform: Tensor,
    sampling: Tensor,
    *,
    n_verify: int,
    mode: SelectMode,
    out: Tensor,
    vocab_limit: int | None = None,
    processing: Processing | None = None,
) -> None:
    """See `ops.Select`."""
    logits = logits[:, :vocab_limit]
    peak, token = logits.max(dim=-1)
    head = logits[:n_verify]
    raw = head
    if processing is not None:
        raw = head.float()
        head = raw if processing.logprob_ids is None else raw.clone()
        process(head, processing)
        peak[:n_verify], token[:n_verify] = head.max(dim=-1)
    if mode != "greedy":
        drawn = _draw(head, temperature[:n_verify], uniform[:n_verify], sampling, mode)
        token[:n_verify] = torch.where(temperature[:n_verify] > 0, drawn, token[:n_verify])
    out[:, 0] = torch.where(torch.isfinite(peak), token, -1)
    if out.shape[1] > 1:
        out[:, 1:] = _successors(logits, sampling, out.shape[1] - 1)
        if processing is not None:
            out[:n_verify, 1:] = _successors(head, sampling, out.shape[1] - 1)
    if processing is not None:
        write_logprobs(raw, out[:n_verify, 0], processing)


def _successors(logits: Tensor, sampling: Tensor, k: int) -> Tensor:
    """[M, k] ids of the largest logits; -1 behind the smallest set with sampling[3] of the mass.

    The masses are formed even where it is off: to read the number would be a host sync.
    """
    largest, ids = logits.topk(k, dim=-1)
    top_p = sampling[3].double()
    total = logits.double().logsumexp(-1, keepdim=True)
    mass = torch.exp(largest.double() - total)
    before = mass.cumsum(-1) - mass
    beyond = (before >= top_p) & (top_p > 0) & (top_p < 1)
    beyond[:, 0] = False
    return ids.masked_fill_(beyond, -1)


def _draw(
    logits: Tensor, temperature: Tensor, uniform: Tensor, sampling: Tensor, mode: SelectMode
) -> Tensor:
    """[M] ids by inverse CDF."""
    masses = _masses(logits, temperature)
    if mode == "filter":
        masses = _filter(masses, logits, sampling)
    cumulative = masses.cumsum(-1)
    threshold = uniform.double().unsqueeze(-1) * cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, threshold, right=True).squeeze(-1)
    return drawn.clamp_(max=logits.shape[-1] - 1)
