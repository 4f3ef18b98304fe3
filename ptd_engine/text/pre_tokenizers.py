"""How a byte-level BPE cuts text before merging, by the name in `tokenizer.ggml.pre`.

The rules are those of the tokenizer.json that each model family was released with. A name stands
for the whole
family: the regular expression, digit splitting, Unicode normalisation, whether a piece that is a
token as it stands skips the merges, and whether BOS is added when the file does not say.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

from ptd_engine.errors import CheckpointError


@dataclass(frozen=True)
class PreTokenizerRule:
    """One family's rule. `pattern` None means GPT-2's own expression (built into ByteLevel)."""

    pattern: str | None = None
    single_digits: bool = False
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """The steps that end in byte-level characters."""
        steps: list[pre_tokenizers.PreTokenizer] = []
        if self.single_digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        if self.pattern is not None:
            steps.append(pre_tokenizers.Split(Regex(self.pattern), behavior="isolated"))
        use_regex = self.pattern is None
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex))
        return pre_tokenizers.Sequence(steps)

    def normalizer(self) -> normalizers.Normalizer | None:
        """NFC where the family uses it."""
        return normalizers.NFC() if self.nfc else None


def _words_and(digits: str) -> str:
    """The cl100k-style expression, which differs between families in the length of digit runs."""
    return (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
        r"|[^\r\n\p{L}\p{N}]?\p{L}+"
        rf"|{digits}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_GPT2 = PreTokenizerRule()
_DIGITS_GPT2 = PreTokenizerRule(single_digits=True)
_LLAMA3 = PreTokenizerRule(_words_and(r"\p{N}{1,3}"), ignore_merges=True, add_bos=True)

RULES = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "smollm": _DIGITS_GPT2,
    "starcoder": _DIGITS_GPT2,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": PreTokenizerRule(_words_and(r"\p{N}"), nfc=True),
    "deepseek-r1-qwen": PreTokenizerRule(_words_and(r"\p{N}")),
    "tekken": PreTokenizerRule(_TEKKEN, ignore_merges=True),
}


def rule_for(name: str) -> PreTokenizerRule:
    """The rule of that name; `CheckpointError` listing the known names otherwise."""
    if name not in RULES:
        raise CheckpointError.for_field(
            "tokenizer.ggml.pre",
            name,
            ", ".join(RULES),
            "Use the safetensors release of this model: its tokenizer.json holds the rule.",
        )
    return RULES[name]
