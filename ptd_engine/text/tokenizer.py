"""The tokenizer that the engine's text layer uses, whatever file it comes from."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ptd_engine.checkpoint.gguf_header import read_gguf_header
from ptd_engine.errors import CheckpointError, PromptError, PTDError
from ptd_engine.text.decoder_stages import decoder_stages, token_bytes
from ptd_engine.text.eos import eos_union
from ptd_engine.text.gguf_tokenizer import tokenizer_from_gguf
from ptd_engine.text.messages import Message, check_messages, check_rendered
from ptd_engine.text.stream import IncrementalDecoder

# What `render_chat` decides itself.
_SET_BY_ENGINE = frozenset(
    {"messages", "tools", "tokenize", "add_generation_prompt", "chat_template", "bos_token"}
)


class Tokenizer:
    """Encoding, decoding and the chat template of one model.

    Special tokens that are spelled out in a text become these tokens (as in transformers); a
    completion prompt that starts with the text of BOS therefore has two of them, the spelled one
    and the added one.

    Attributes:
        hf: the transformers tokenizer behind it.
        eos_token_ids: the ids that the *tokenizer's* files name as ends; join them with those of
            the model's configuration by `eos_union`.
        bos_token_id: None if the tokenizer has none.
        special_tokens: the ids of special tokens, which give no text, by their spelling.
        vocab_size: one more than the highest id that stands for a token, added tokens included. The
            model's matrices may have more rows than that (padding to a round number): those ids
            have no text, and their logits are whatever training left there.
    """

    def __init__(
        self,
        hf: PreTrainedTokenizerFast,
        eos_token_ids: Sequence[int],
        vocab_size: int | None = None,
    ) -> None:
        """Wrap `hf`; `vocab_size` where its vocabulary holds padding, else it is counted."""
        self.hf = hf
        self.eos_token_ids = tuple(eos_token_ids)
        self.bos_token_id: int | None = hf.bos_token_id
        self._backend = hf.backend_tokenizer
        # Not the number of tokens: ids may have gaps.
        ids = self._backend.get_vocab(with_added_tokens=True).values()
        self.vocab_size = max(ids, default=-1) + 1 if vocab_size is None else vocab_size
        self._decoder: Mapping[str, Any] | None = json.loads(self._backend.to_str())["decoder"]
        self.special_tokens: Mapping[str, int] = {
            token.content: index
            for index, token in self._backend.get_added_tokens_decoder().items()
            if token.special
        }
        # An unsupported decoder is refused here, at load, not at first use.
        self._stages = decoder_stages(self._decoder)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text; with `add_special_tokens`, BOS in front where the model wants it.

        Bytes that a byte-level vocabulary lacks (SmolLM2: some control characters, and characters
        of planes without any) give no id, as in the original tokenizer.

        Raises:
            PromptError: the text is not valid Unicode (lone surrogates).
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise PromptError(
                f"The text is not valid Unicode: position {error.start} holds a lone surrogate. "
                "Decode the input with errors='replace'."
            ) from None
        found: list[int] = self.hf(
            text,
            add_special_tokens=add_special_tokens,
            padding=False,
            truncation=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )["input_ids"]
        return found

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of the ids, never "cleaned up": every space of an encoded text comes back."""
        text = self.hf.decode(
            list(ids),
            skip_special_tokens=skip_special_tokens,
            clean_up_tokenization_spaces=False,
        )
        return str(text)

    def token_bytes(self, token: int) -> bytes:
        """What one token adds to the UTF-8 of a text that it stands inside, perhaps part of a
        character. A special token gives its spelling, an id without a token nothing.
        """
        spelled = self._backend.id_to_token(token)
        if spelled is None:
            return b""
        if spelled in self.special_tokens:
            return str(spelled).encode("utf-8")
        return token_bytes(self._stages, spelled)

    def decode_stream(self, skip_special_tokens: bool = True) -> IncrementalDecoder:
        """A decoder for one output that arrives token by token."""
        return IncrementalDecoder(
            self._backend.id_to_token,
            decoder_stages(self._decoder),
            self.special_tokens if skip_special_tokens else (),
        )

    @property
    def has_chat_template(self) -> bool:
        """Whether `apply_chat_template` can be used."""
        return bool(self.hf.chat_template)

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Any] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text of a conversation, up to where the assistant's answer begins.

        Args:
            messages: dicts of role ("system", "user", "assistant", "tool", or what the template
                names besides) and content (a text), and where the template reads them tool_calls,
                name, tool_call_id, reasoning_content and so on, as transformers takes them.
            tools: functions the model may call: JSON schemas or Python functions.
            template_kwargs: further variables of the template, for example `enable_thinking`.

        Raises:
            PromptError: no template, no messages, messages that the template refuses or passes
                over, or keys, tools and variables that it does not know.
        """
        if not self.has_chat_template:
            raise PromptError(
                "This model has no chat template: use an instruction-tuned model, or pass a prompt."
            )
        check_messages(messages, self._template_reads)
        variables = self._variables(template_kwargs)
        if tools and not self._template_reads("tools"):
            raise PromptError.for_field(
                "tools", tools, "none: this model's chat template does not read them"
            )

        def render(conversation: Sequence[Message]) -> str:
            try:
                text = self.hf.apply_chat_template(
                    [dict(message) for message in conversation],
                    tools=list(tools) if tools else None,
                    tokenize=False,
                    add_generation_prompt=True,
                    **variables,
                )
            except Exception as error:  # a template is a program: whatever it does, it failed
                raise PromptError(
                    f"The chat template refuses these messages: {error}. A message is "
                    "{'role': 'user' | 'assistant' | 'system', 'content': text}."
                ) from error
            return str(text)

        text = render(messages)
        check_rendered(messages, text, render)
        return text

    def _variables(self, template_kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
        """The template's further variables, checked: a template passes over what it does not know,
        and the answer would be another one.
        """
        if template_kwargs is None:
            return {}
        if not isinstance(template_kwargs, Mapping):
            raise PromptError.for_field(
                "template_kwargs", template_kwargs, "a mapping of the template's variables"
            )
        for name in template_kwargs:
            if name in _SET_BY_ENGINE:
                raise PromptError.for_field(
                    "template_kwargs", name, "variables that no argument and no file sets already"
                )
            if not self._template_reads(name):
                raise PromptError.for_field(
                    "template_kwargs",
                    name,
                    "variables that this model's chat template reads",
                    "Leave it out, or see `tokenizer.hf.chat_template` for their names.",
                )
        return dict(template_kwargs)

    def _template_reads(self, name: object) -> bool:
        return bool(re.search(rf"\b{re.escape(str(name))}\b", str(self.hf.chat_template)))

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Any] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The prompt ids of a conversation; arguments as for `render_chat`.

        The template writes BOS itself where the model wants it; none is added, so there are never
        two.
        """
        text = self.render_chat(messages, tools=tools, template_kwargs=template_kwargs)
        return self.encode(text, add_special_tokens=False)


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a Hugging Face model directory or of a .gguf file. No network, no remote
    code.

    Raises:
        CheckpointError: missing or damaged files, or a tokenizer of an unsupported kind.
    """
    path = Path(path)
    if path.is_dir():
        return _from_directory(path)
    if not path.is_file():
        raise CheckpointError(f"Tokenizer not found: {path} is neither a directory nor a file.")
    return Tokenizer(*tokenizer_from_gguf(read_gguf_header(path)))


_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")


def _from_directory(path: Path) -> Tokenizer:
    # Some versions of the library build an empty tokenizer from nothing instead of failing.
    if not any((path / name).is_file() for name in _TOKENIZER_FILES):
        raise CheckpointError(
            f"The directory {path} has no tokenizer: none of {', '.join(_TOKENIZER_FILES)} is in "
            "it. Copy them from the model's repository."
        )
    try:
        hf = AutoTokenizer.from_pretrained(
            str(path), local_files_only=True, trust_remote_code=False, use_fast=True
        )
    except Exception as error:  # the library raises many kinds for one cause: unusable files
        raise CheckpointError(
            f"The tokenizer in {path} cannot be loaded ({error}). "
            "The directory needs tokenizer.json and tokenizer_config.json."
        ) from error
    if not isinstance(hf, PreTrainedTokenizerFast):
        raise CheckpointError.for_field(
            f"tokenizer in {path}",
            type(hf).__name__,
            "a tokenizer with a tokenizer.json",
            "Save it once with transformers as a fast tokenizer.",
        )
    try:
        made = Tokenizer(hf, eos_union(hf.eos_token_id))
        made.encode("a")  # settings of a wrong kind show here, not in the first request
    except PTDError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"The tokenizer in {path} does not work ({error}): its files are damaged."
        ) from error
    return made
