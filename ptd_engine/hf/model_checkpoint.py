"""A transformers model in memory, read as a checkpoint is."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ptd_engine.errors import CheckpointError

_EMBED, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


class ModelCheckpoint:
    """Weights and configuration of a model object. Implements the `Checkpoint` protocol."""

    def __init__(self, model: Any) -> None:
        """Take the model's state; nothing is copied.

        Args:
            model: a transformers PreTrainedModel.

        Raises:
            CheckpointError: quantised, an adapter in it, or weights that are not in memory.
        """
        self._tensors: dict[str, Tensor] = model.state_dict()
        self._config: dict[str, Any] = model.config.to_dict()
        # A subclass may compute anything, so the class counts and not what the config says.
        self._config["architectures"] = [type(model).__name__]
        if self._config.get("quantization_config") or getattr(model, "hf_quantizer", None):
            raise CheckpointError(
                "The model is quantised: load it without quantization_config. ptd_engine has int8 "
                "and int4 weights of its own (LLM.from_pretrained(..., dtype='int8'))."
            )
        for name, tensor in self._tensors.items():
            if "lora_" in name:
                raise CheckpointError(
                    f"The model holds an adapter ({name}): merge it first (merge_and_unload)."
                )
            if tensor.device.type == "meta":
                raise CheckpointError(
                    f"{name} is not in memory (offloaded, or never loaded): load the model without "
                    "device_map, or with all of it on one device."
                )
        self._config["tie_word_embeddings"] = self._tied()
        self._dtype = str(model.dtype).removeprefix("torch.")

    def _tied(self) -> bool:
        """Whether the model computes its logits with the embedding, whatever its config says."""
        head, embed = self._tensors.get(_HEAD), self._tensors.get(_EMBED)
        if head is None or embed is None or head.data_ptr() != embed.data_ptr():
            return False
        del self._tensors[_HEAD]
        return True

    @property
    def config(self) -> dict[str, Any]:
        """See `Checkpoint.config`."""
        return self._config

    @property
    def generation_config(self) -> dict[str, Any]:
        """Nothing: every call of `generate` brings its own."""
        return {}

    @property
    def dtype_name(self) -> str:
        """See `Checkpoint.dtype_name`."""
        return self._dtype

    def names(self) -> list[str]:
        """See `Checkpoint.names`."""
        return list(self._tensors)

    def tensor(self, name: str) -> Tensor:
        """See `Checkpoint.tensor`."""
        return self._tensors[name]
