"""The corpus of n-grams that Self-Draft may be given: a JSON file of token ids."""

from __future__ import annotations

import json

from .checks import MAX_TOKEN_ID, as_int
from .errors import ConfigError

Corpus = dict[int, list[list[int]]]


def read_corpus(path: str, ngram: int) -> Corpus:
    """Read {"token id": [[`ngram` token ids that follow it], ...], ...}.

    Returns:
        Token id -> n-grams in the file's order.

    Raises:
        ConfigError: the file cannot be read, is no JSON, or holds anything else; names the entry.
    """
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError.for_field(
            "corpus", path, f"a file that can be read ({reason})"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError.for_field("corpus", path, f"a JSON file ({error})") from error
    form = f'a JSON object {{"token id": [[{ngram} token ids], ...], ...}}'
    if not isinstance(content, dict):
        raise ConfigError.for_field("corpus", path, form)
    corpus: Corpus = {}
    for key, ngrams in content.items():
        if not key.isascii() or not key.isdigit() or int(key) > MAX_TOKEN_ID:
            raise _bad_entry(path, f"the key {key!r}", form)
        if not isinstance(ngrams, list):
            raise _bad_entry(path, f"the value of {key!r}", form)
        for i, ids in enumerate(ngrams):
            if not isinstance(ids, list) or len(ids) != ngram or not all(map(_is_id, ids)):
                raise _bad_entry(path, f"n-gram {i} of {key!r}", form)
        corpus[int(key)] = ngrams
    return corpus


def _is_id(value: object) -> bool:
    number = as_int(value)
    return number is not None and 0 <= number <= MAX_TOKEN_ID


def _bad_entry(path: str, entry: str, form: str) -> ConfigError:
    return ConfigError.for_field("corpus", path, form, f"See {entry}.")
