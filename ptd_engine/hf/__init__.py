"""For users who hold a transformers model: `generate` as its decoding loop.

    import ptd_engine.hf

    model.generate(**inputs, max_new_tokens=64, custom_generate=ptd_engine.hf.generate)

The first call packs a second copy of the weights for our kernels; it lives as long as the model.
"""

from ptd_engine.hf.generation import generate
from ptd_engine.hf.served import release

__all__ = ["generate", "release"]
