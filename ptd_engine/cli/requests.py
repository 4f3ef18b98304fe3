"""From a prompt's text to token ids, as a conversation or as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptd_engine.errors import PromptError

if TYPE_CHECKING:
    from ptd_engine.llm import LLM


def chat_form(llm: LLM, wanted: bool | None) -> bool:
    """Whether prompts become conversations; None asks for it where the model has a template.

    Raises:
        PromptError: it was asked for and the model has no template.
    """
    if wanted is None:
        return llm.tokenizer.has_chat_template
    if wanted and not llm.tokenizer.has_chat_template:
        raise PromptError(
            "This model has no chat template: pass --raw to complete the prompt as it is, or use "
            "an instruction-tuned model."
        )
    return wanted


def encode(llm: LLM, text: str, *, as_chat: bool) -> list[int]:
    """Token ids of a prompt.

    Raises:
        PromptError: text that is no valid Unicode, or that the template refuses.
    """
    if as_chat:
        return llm.encode_chat([{"role": "user", "content": text}])
    return llm.encode(text)
