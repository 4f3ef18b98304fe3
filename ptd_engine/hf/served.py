"""One engine for each transformers model, made at its first request, gone with the model."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

from ptd_engine.drafters import DrafterSpec, make_drafter, resolve
from ptd_engine.engine import Engine
from ptd_engine.hf.model_checkpoint import ModelCheckpoint
from ptd_engine.model import CausalLM, RopeTable, load_model
from ptd_engine.runner import make_runner

_LEAST_CONTEXT = 1024  # a shorter request may be followed by a longer one


@dataclass
class _Served:
    """What is kept for a model."""

    state: object
    kernels: str
    model: CausalLM
    drafter: DrafterSpec
    engine: Engine


_served: WeakKeyDictionary[Any, _Served] = WeakKeyDictionary()
_lock = threading.Lock()


def release(model: Any) -> None:
    """Forget the engine of a model and free its memory.

    Weights that change in place are noticed, unless they change behind autograd's back (through
    `parameter.data`): call this then.
    """
    with _lock:
        _served.pop(model, None)


def engine_for(model: Any, *, drafter: DrafterSpec, kernels: str, context: int) -> Engine:
    """The engine of a model, for requests of up to `context` tokens.

    It is made anew when the weights or the arguments changed, or the context is too short.

    Raises:
        CheckpointError: a model that is not supported.
        ConfigError: bad arguments, or a context beyond a sliding window.
    """
    with _lock:
        found, state = _served.get(model), _state_of(model)
        wanted = resolve(drafter, model.device.type)
        before = None if found is None else found.engine
        longest = 0 if before is None else before.max_seq_len
        if found is None or found.state != state or found.kernels != kernels:
            found = before = None  # no old weights beside the new ones
            _served.pop(model, None)
            loaded = load_model(
                ModelCheckpoint(model), device=model.device, kernels=kernels, max_seq_len=1
            )
        elif found.drafter == wanted and found.engine.max_seq_len >= context:
            return found.engine
        else:
            loaded = found.model
        engine = _make_engine(loaded, wanted, max(context, longest), before)
        _served[model] = _Served(state, kernels, loaded, wanted, engine)
        return engine


def _make_engine(
    model: CausalLM, drafter: DrafterSpec, context: int, before: Engine | None
) -> Engine:
    config = model.config
    room = 1 << (max(context, _LEAST_CONTEXT) - 1).bit_length()
    length = max(context, min(room, config.max_position_embeddings, config.sliding_window or room))
    config.check_context(length)
    made = make_drafter(drafter, device_type=model.device.type, eos_ids=config.eos_token_ids)
    needs = made.needs()
    runner = make_runner(
        replace(model, rope=RopeTable(config, length, model.device)),
        max_seq_len=length,
        max_nodes=1 + needs.max_nodes,
        top_k=needs.top_k,
    )
    # Which ids end an output is said by every request.
    return Engine(
        runner,
        made,
        max_seq_len=length,
        vocab_size=config.vocab_size,
        step_times=None if before is None else before.step_times,
    )


def _state_of(model: Any) -> object:
    """Changes when a weight is exchanged, moved, converted or written to."""
    return [
        (tensor.data_ptr(), tensor.dtype, 0 if tensor.is_inference() else tensor._version)
        for tensor in model.parameters()
    ]
