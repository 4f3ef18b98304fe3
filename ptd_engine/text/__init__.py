"""Text <-> token ids: tokenizers from Hugging Face directories and GGUF files, streaming
decoding.
"""

from ptd_engine.text.entities import EntitySeeds
from ptd_engine.text.eos import eos_union
from ptd_engine.text.messages import Message
from ptd_engine.text.stop_strings import StopStrings
from ptd_engine.text.stream import IncrementalDecoder
from ptd_engine.text.tokenizer import Tokenizer, load_tokenizer

__all__ = [
    "EntitySeeds",
    "IncrementalDecoder",
    "Message",
    "StopStrings",
    "Tokenizer",
    "eos_union",
    "load_tokenizer",
]
