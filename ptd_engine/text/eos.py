"""Which token ids end a generation: the union of every source that names one.

No source replaces another: config.json, generation_config.json and the tokenizer disagree in
published checkpoints (one lists only <|endoftext|>, another only <|im_end|>), and a missing id
means that the model runs on to the length limit.
"""

from __future__ import annotations

from collections.abc import Sequence

from ptd_engine.errors import CheckpointError


def eos_union(*sources: int | Sequence[int] | None) -> tuple[int, ...]:
    """The ids of all sources without repetition, in order of first appearance.

    Args:
        sources: the `eos_token_id` of config.json, of generation_config.json, the tokenizer's ids,
            ...; each an id, a sequence of ids, or None where the source is silent.

    Raises:
        CheckpointError: an entry that is not a non-negative integer.
    """
    found: dict[int, None] = {}
    for source in sources:
        if source is None:
            continue
        for token in [source] if isinstance(source, int) else source:
            if isinstance(token, bool) or not isinstance(token, int) or token < 0:
                raise CheckpointError.for_field(
                    "eos_token_id",
                    source,
                    "an integer >= 0, a list of them, or null",
                    "Correct config.json or generation_config.json.",
                )
            found[token] = None
    return tuple(found)
