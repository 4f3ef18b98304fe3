"""GGUF metadata -> a transformers tokenizer with the rules that the model was trained with.

transformers' own conversion is not used: for SmolLM2 it loses the EOS id, the splitting of digits,
the byte-level decoder, and turns on the clean-up of spaces.
"""

from __future__ import annotations

from collections.abc import Callable

from tokenizers import AddedToken, decoders, normalizers, processors
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from ptd_engine.checkpoint.gguf_header import GGUFHeader
from ptd_engine.errors import CheckpointError
from ptd_engine.text.gguf_vocab import (
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    GGUFVocab,
    read_vocab,
)
from ptd_engine.text.pre_tokenizers import rule_for

_SPACE = "\u2581"  # SentencePiece's visible space


def tokenizer_from_gguf(
    header: GGUFHeader,
) -> tuple[PreTrainedTokenizerFast, tuple[int, ...], int]:
    """Build the tokenizer; returns it, the ids that end a generation, and `Tokenizer.vocab_size`.

    Raises:
        CheckpointError: metadata that is missing, contradictory or of an unsupported kind.
    """
    vocab = read_vocab(header)
    backend, add_bos = (
        _byte_level(header, vocab) if vocab.model == "gpt2" else _sentencepiece(header, vocab)
    )
    for kinds, special in (((CONTROL, UNKNOWN), True), ((USER_DEFINED,), False)):
        backend.add_tokens(
            [
                AddedToken(token, special=special, normalized=False)
                for token, kind in zip(vocab.tokens, vocab.types, strict=True)
                if kind in kinds and token
            ]
        )
    add_bos = header.boolean("tokenizer.ggml.add_bos_token", add_bos)
    add_eos = header.boolean("tokenizer.ggml.add_eos_token", False)
    backend.post_processor = _frame(vocab, add_bos, add_eos)
    template = header.metadata.get("tokenizer.chat_template")
    make_tokenizer: Callable[..., PreTrainedTokenizerFast] = PreTrainedTokenizerFast
    hf = make_tokenizer(
        tokenizer_object=backend,
        bos_token=vocab.special_token("bos"),
        eos_token=vocab.special_token("eos"),
        unk_token=vocab.special_token("unk"),
        pad_token=vocab.special_token("pad"),
        chat_template=template if isinstance(template, str) else None,
        clean_up_tokenization_spaces=False,
    )
    return hf, vocab.eos_token_ids, vocab.used


def _byte_level(header: GGUFHeader, vocab: GGUFVocab) -> tuple[Backend, bool]:
    rule = rule_for(header.string("tokenizer.ggml.pre", "default"))
    merges: list[tuple[str, str]] = []
    for line in header.strings("tokenizer.ggml.merges"):
        left, space, right = line.partition(" ")
        if not (left and space and right):
            raise CheckpointError.for_field(
                "tokenizer.ggml.merges entry", line, "two tokens joined by a space", "Damaged file?"
            )
        merges.append((left, right))
    ids = {token: index for index, token in enumerate(vocab.tokens)}
    backend = Backend(_bpe(header, ids, merges, ignore_merges=rule.ignore_merges))
    if normalizer := rule.normalizer():
        backend.normalizer = normalizer
    backend.pre_tokenizer = rule.pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    return backend, rule.add_bos


def _sentencepiece(header: GGUFHeader, vocab: GGUFVocab) -> tuple[Backend, bool]:
    scores = header.numbers("tokenizer.ggml.scores")
    if len(scores) != len(vocab.tokens):
        raise CheckpointError.for_field(
            "length of tokenizer.ggml.scores", len(scores), f"{len(vocab.tokens)}, one per token"
        )
    ids = {token: index for index, token in enumerate(vocab.tokens)}
    backend = Backend(
        _bpe(
            header,
            ids,
            merges_from_scores(vocab, scores),
            unk_token=vocab.special_token("unk"),
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    spaces = normalizers.Replace(" ", _SPACE)
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if header.boolean("tokenizer.ggml.add_space_prefix", True):
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        backend.normalizer = spaces
    backend.decoder = decoders.Sequence(steps)
    return backend, True


def merges_from_scores(vocab: GGUFVocab, scores: list[float]) -> list[tuple[str, str]]:
    """SentencePiece's merge order: the adjacent pair whose joined token has the highest score
    first.

    Every split of a token into two tokens is a merge with the priority of the token; equal scores
    go by id, and the splits of one token by the length of the left part.
    """
    normal = {t for t, kind in zip(vocab.tokens, vocab.types, strict=True) if kind == NORMAL}
    order = sorted(range(len(vocab.tokens)), key=lambda i: (-scores[i], i))
    return [
        (token[:cut], token[cut:])
        for token in (vocab.tokens[i] for i in order)
        if token in normal
        for cut in range(1, len(token))
        if token[:cut] in normal and token[cut:] in normal
    ]


def _bpe(
    header: GGUFHeader,
    ids: dict[str, int],
    merges: list[tuple[str, str]],
    *,
    unk_token: str | None = None,
    byte_fallback: bool = False,
    fuse_unk: bool = False,
    ignore_merges: bool = False,
) -> BPE:
    try:
        return BPE(
            vocab=ids,
            merges=merges,
            unk_token=unk_token,
            byte_fallback=byte_fallback,
            fuse_unk=fuse_unk,
            ignore_merges=ignore_merges,
        )
    except Exception as error:  # the library has no narrower type for an unknown merge
        raise CheckpointError(
            f"{header.path}: vocabulary and merges do not belong together ({error})."
        ) from error


def _frame(vocab: GGUFVocab, add_bos: bool, add_eos: bool) -> processors.PostProcessor:
    """What surrounds an encoded text: BOS and EOS where the file asks for them."""
    # The pieces of the template have names of their own: the text of a token may hold ":" or "$".
    template: list[str] = ["$A:0"]
    used: list[dict[str, object]] = []
    for wanted, name in ((add_bos, "bos"), (add_eos, "eos")):
        if not wanted:
            continue
        token = vocab.special_token(name)
        if token is None:
            raise CheckpointError.for_field(
                f"tokenizer.ggml.add_{name}_token", True, f"False without a {name}_token_id"
            )
        template.insert(0 if name == "bos" else len(template), f"{name}:0")
        used.append({"id": name, "ids": [vocab.special_ids[name]], "tokens": [token]})
    return processors.TemplateProcessing(single=template, special_tokens=used)
