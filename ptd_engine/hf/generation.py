"""The decoding loop that transformers' generate calls."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from transformers.generation.utils import GenerateDecoderOnlyOutput

from ptd_engine.checks import MAX_SEED, SEED_HINT, check_int
from ptd_engine.drafters import DrafterSpec
from ptd_engine.hf.request import check_supported, params_of
from ptd_engine.hf.served import engine_for
from ptd_engine.streamers import Feed, Streamer


def generate(
    model: Any,
    input_ids: Tensor,
    logits_processor: Any = (),
    stopping_criteria: Any = (),
    generation_config: Any = None,
    streamer: Streamer | None = None,
    *,
    seed: int | torch.Generator | None = None,
    drafter: DrafterSpec = "hybrid",
    kernels: str = "auto",
    **model_kwargs: Any,
) -> Any:
    """Generate with ptd_engine: `model.generate(..., custom_generate=ptd_engine.hf.generate)`.

    What generate prepares holds as ever: lengths, end-of-sequence ids, penalties, filters, your own
    processors and criteria, streamers. Greedy output in float32 is that of transformers; sampled
    output has its law and other random numbers.

    Args:
        model: a Llama, Mistral, Qwen2 or Qwen3 model for causal language modelling.
        input_ids: [1, n].
        logits_processor, stopping_criteria, generation_config: as generate has prepared them.
        streamer: gets every token, then the end.
        seed: of the sampling, given to generate as one of its arguments, as are the following: a
            number, or a generator that one is drawn from; None draws another one for every request,
            here from torch's own generator, so that `torch.manual_seed` decides.
        drafter: as `LLM.from_pretrained` takes it; "none" is plain decoding.
        kernels: as `LLM.from_pretrained` takes it.
        model_kwargs: what generate prepares for the model's forward.

    Returns:
        [1, n + output] int64 on the device of `input_ids`, or, with return_dict_in_generate, an
        object with these `sequences`.

    Raises:
        ConfigError: something that is not done here: beams, several sequences, a batch, a cache of
            your own, scores or hidden states in the output.
        CheckpointError: a model that is not supported.
        PromptError: no input.
        EngineError: logits that are not finite.
    """
    with Feed(_streamer_of_caller() if streamer is None else streamer) as feed:
        check_supported(generation_config, input_ids, model_kwargs)
        prompt: list[int] = input_ids[0].tolist()
        do_sample = bool(getattr(generation_config, "do_sample", False))
        params, stop_check = params_of(
            prompt,
            logits_processor,
            stopping_criteria,
            do_sample=do_sample,
            seed=_number(seed) if do_sample else 0,
        )
        context = max(len(prompt) + 1, model.config.max_position_embeddings)
        if isinstance(params.max_new_tokens, int):
            context = len(prompt) + max(1, params.max_new_tokens)
        engine = engine_for(model, drafter=drafter, kernels=kernels, context=context)
        generation = engine.generate(prompt, params, stop_check)
        try:
            for step in generation:
                feed.tokens(step.token_ids)
        finally:
            generation.close()
        new = torch.tensor([generation.token_ids], dtype=input_ids.dtype, device=input_ids.device)
        sequences = torch.cat((input_ids, new), dim=1)
    if getattr(generation_config, "return_dict_in_generate", False):
        return GenerateDecoderOnlyOutput(sequences=sequences)  # type: ignore[arg-type]
    return sequences


def _number(seed: int | torch.Generator | None) -> int:
    if seed is None or isinstance(seed, torch.Generator):
        device = "cpu" if seed is None else seed.device
        return int(torch.randint(2**63 - 1, (1,), generator=seed, device=device))
    return check_int("seed", seed, 0, MAX_SEED, f"{SEED_HINT} A torch.Generator may draw it too.")


def _streamer_of_caller() -> Streamer | None:
    """The streamer that the user gave to transformers' generate.

    It feeds the prompt to it but does not pass it on to a callable `custom_generate` (seen in
    transformers 5.24); a stream without tokens and end would leave its reader waiting.
    """
    frame = sys._getframe(2)
    for _ in range(3):  # a function of the user's may stand between
        if frame.f_globals.get("__name__") == "transformers.generation.utils":
            ours = frame.f_code.co_name == "generate" and callable(
                frame.f_locals["custom_generate"]
            )
            found: Streamer | None = frame.f_locals["streamer"] if ours else None
            return found
        if frame.f_back is None:
            break
        frame = frame.f_back
    return None
