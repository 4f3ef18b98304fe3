"""Where a prompt's text names something: what PTD may begin its draft tree with ("ner").

spaCy finds the entities where it is installed with a pipeline that has them; else patterns do:
quoted spans, identifiers of code, numbers, runs of capitalised words. Neither can change an output;
what begins the draft tree decides how fast the first steps are.
"""

from __future__ import annotations

import bisect
import importlib
import logging
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ptd_engine.text.tokenizer import Tokenizer

Span = tuple[int, int]
"""Characters [begin, end) of a text."""

MOST_TOKENS = 2048  # of the prompt's end are read: what comes before would hardly ever be used
_MOST_QUOTED = 60  # characters between quotation marks that still name something

_log = logging.getLogger(__name__)

_PATTERNS = (
    # Between marks of one kind. A ' counts only where no letter touches it from outside.
    re.compile(
        rf'"([^"\n]{{1,{_MOST_QUOTED}}})"|“([^”\n]{{1,{_MOST_QUOTED}}})”|`([^`\n]{{1,{_MOST_QUOTED}}})`'
        rf"|(?<!\w)'([^'\n]{{1,{_MOST_QUOTED}}})'(?!\w)"
    ),
    # snake_case, dotted.names, camelCase, a name in front of a bracket.
    re.compile(
        r"\b([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+|\w*[A-Za-z]\w*_\w+|[a-z]+[A-Z]\w*|[A-Za-z_]\w*(?=\())"
    ),
    # 7, 3.14, 80,000, 60%, $5, 2024-01-31.
    re.compile(r"(?<![\w.])([$€£]?\d+(?:[.,:/-]\d+)*%?)"),
)
_WORD = r"[A-ZÀ-ÖØ-Þ][\w'\u2019-]*\w"
_CAPITALISED = re.compile(rf"\b{_WORD}(?:[ \t](?:(?:of|de|van|von|the)[ \t])?{_WORD})*")
_SENTENCE_END = re.compile(r"(?:^|[.!?:;\n\"“(*#>-])[ \t]*$")


def find_entities(text: str) -> list[Span]:
    """Spans by patterns alone, in order, none inside another.

    One capitalised word at the beginning of a sentence says nothing: it counts if it has a capital
    or a digit further on, or stands inside a sentence elsewhere.
    """
    spans = [
        match.span(match.lastindex or 0)
        for pattern in _PATTERNS
        for match in pattern.finditer(text)
    ]
    return _outermost(spans + _capitalised(text))


def _capitalised(text: str) -> list[Span]:
    certain: list[Span] = []
    initial: list[Span] = []
    for match in _CAPITALISED.finditer(text):
        words = match[0].split()
        opens = _SENTENCE_END.search(text, max(0, match.start() - 8), match.start()) is not None
        plain = words[0][1:].islower() or len(words[0]) == 1
        (initial if opens and plain and len(words) == 1 else certain).append(match.span())
    known = {text[begin:end] for begin, end in certain}
    return certain + [span for span in initial if text[span[0] : span[1]] in known]


def _outermost(spans: Sequence[Span]) -> list[Span]:
    """The spans in order, without those that overlap an earlier or longer one."""
    kept: list[Span] = []
    for begin, end in sorted(spans, key=lambda span: (span[0], -span[1])):
        if not kept or begin >= kept[-1][1]:
            kept.append((begin, end))
    return kept


def load_tagger() -> Callable[[str], list[Span]]:
    """spaCy's entities, by the first of its installed pipelines that has them; else the patterns.

    A spaCy that is installed and does not load is named in a warning.
    """
    try:
        spacy = importlib.import_module("spacy")
        for name in sorted(spacy.util.get_installed_models()):
            pipeline = spacy.load(name)
            if "ner" in pipeline.pipe_names:
                return lambda text: [(e.start_char, e.end_char) for e in pipeline(text).ents]
    except ModuleNotFoundError:
        pass
    except (ImportError, OSError, ValueError) as error:  # built for another numpy, a torn pipeline
        _log.warning("spaCy did not load (%s); entities are found by patterns.", error)
    return find_entities


class EntitySeeds:
    """Token runs of a prompt's entities, the last one first, each spelling once.

    The last turn of a conversation is what the answer is about; a system message and the words of a
    chat template come before it.
    """

    def __init__(
        self, tokenizer: Tokenizer, tagger: Callable[[str], list[Span]] | None = None
    ) -> None:
        """Join a tokenizer and a tagger (None: `load_tagger`)."""
        self._tokenizer = tokenizer
        self._special = frozenset(tokenizer.special_tokens.values())
        self._tagger = load_tagger() if tagger is None else tagger

    def __call__(self, prompt: Sequence[int]) -> list[list[int]]:
        """Chains of token ids for a prompt of token ids."""
        ids = prompt[-MOST_TOKENS:]
        decoder = self._tokenizer.decode_stream()
        pieces = [decoder.push([token]) for token in ids]
        ends: list[int] = []
        for piece in pieces:
            ends.append((ends[-1] if ends else 0) + len(piece))
        text = "".join(pieces)
        chains: dict[str, list[int]] = {}
        for begin, end in reversed(self._tagger(text)):
            chain = self._tokens(ids, ends, begin, end)
            if chain:
                chains.setdefault(text[begin:end], chain)
        return list(chains.values())

    def _tokens(self, ids: Sequence[int], ends: list[int], begin: int, end: int) -> list[int]:
        """The tokens that hold the characters [begin, end)."""
        first, last = bisect.bisect_right(ends, begin), bisect.bisect_left(ends, end)
        # Tokens in front whose bytes became text with this one only.
        while first > 0 and _start(ends, first - 1) == ends[first - 1] == _start(ends, first):
            if ids[first - 1] in self._special:
                break
            first -= 1
        return [token for token in ids[first : last + 1] if token not in self._special]


def _start(ends: Sequence[int], index: int) -> int:
    return ends[index - 1] if index > 0 else 0
