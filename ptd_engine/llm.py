"""Text in, text out: the API that most users need.

llm = LLM.from_pretrained("demo")
print(llm.generate("The sky is", SamplingParams(max_new_tokens=32)).text)
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from typing import Any

import torch

from ptd_engine import _core, hub, text
from ptd_engine.checkpoint import open_checkpoint
from ptd_engine.checkpoint.generation_defaults import (
    GenerationDefaults,
    load_generation_defaults,
)
from ptd_engine.config import MAX_TREE_NODES, ResolvedParams, SamplingParams
from ptd_engine.drafters import DrafterSpec, make_drafter, resolve
from ptd_engine.engine import Engine, Generation, check_params, check_reuse_prefix
from ptd_engine.errors import ConfigError, PromptError, UnavailableError
from ptd_engine.model import CausalLM, ModelConfig, load_model
from ptd_engine.model.config import MAX_CONTEXT
from ptd_engine.outputs import Chunk, ChunkStream, GenerationOutput, TokenLogprobs, Usage
from ptd_engine.runner import EagerRunner
from ptd_engine.streamers import Feed, Streamer
from ptd_engine.turnstile import OnBusy, check_on_busy

# Without max_seq_len the cache is made for the model's context, up to this many tokens: models that
# state 128k would otherwise take gigabytes for a short chat.
DEFAULT_MAX_SEQ_LEN = 8192

_log = logging.getLogger(__name__)

Prompt = str | Sequence[int]
Message = Mapping[str, str]


class LLM:
    """A model, its tokenizer and an engine, for one request at a time.

    Requests from several threads wait for each other, unless they are to err. Build it with
    `from_pretrained`.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: text.Tokenizer,
        model: CausalLM,
        defaults: GenerationDefaults | None = None,
    ) -> None:
        self.defaults = GenerationDefaults() if defaults is None else defaults
        self.engine = engine
        self.tokenizer = tokenizer
        self.model = model

    @classmethod
    def from_pretrained(
        cls,
        model: str,
        *,
        dtype: str = "auto",
        device: str = "auto",
        max_seq_len: int | None = None,
        drafter: DrafterSpec = "ptd",
        kernels: str = "auto",
        num_threads: int | None = None,
        generation_config: str = "auto",
        reuse_prefix: bool = False,
        on_busy: OnBusy = "wait",
    ) -> LLM:
        """Load a checkpoint.

        Args:
            model: a local directory, a .gguf file, a hub id, or "demo" (SmolLM2-135M-Instruct).
            dtype: "auto" (the checkpoint's; a quantised GGUF: bfloat16), "float32", "bfloat16",
                "float16", or on a CPU "int8" and "int4": quantised weights, bfloat16 otherwise.
            device: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:N".
            max_seq_len: longest prompt and output together; None takes the model's own context, up
                to 8192.
            drafter: "ptd" (on a CPU a small tree, see docs/cpu_tree.md), "none" (plain decoding), a
                PTDConfig, or a Drafter object.
            kernels: backend of the operations, "auto" or a name that `ptd-engine doctor` lists.
            num_threads: threads of the CPU kernels; None takes torch's number.
            generation_config: "auto" lets the model's generation_config.json fill the fields that
                a request's `SamplingParams` leave open (a warning says with what); "none" does not
                read it for that. Its end-of-sequence ids count either way.
            reuse_prefix: do not compute again what a prompt has in common with the last request's
                prompt and output, from the first token on: the turns of a chat.
            on_busy: what a request does while one of another thread runs: "wait", or "error" for a
                BusyError.

        Raises:
            CheckpointError: files missing, incomplete or unsupported.
            ConfigError: a bad argument.
            UnavailableError: a device or backend that is not here.
        """
        if generation_config not in ("auto", "none"):
            raise ConfigError.for_field("generation_config", generation_config, "'auto' or 'none'")
        check_reuse_prefix(reuse_prefix)
        check_on_busy(on_busy)
        target = resolve_device(device)
        resolve(drafter, target.type)
        path = hub.resolve_model(model)
        trained = ModelConfig.from_hf(open_checkpoint(path).config).max_position_embeddings
        length = min(trained, DEFAULT_MAX_SEQ_LEN) if max_seq_len is None else max_seq_len
        _check_max_seq_len(length)
        if length > trained:
            _log.warning(
                "max_seq_len=%d exceeds the %d positions this model was made for: text beyond them "
                "may be of poor quality.",
                length,
                trained,
            )
        tokenizer = text.load_tokenizer(path)
        loaded = load_model(
            path,
            dtype=dtype,
            device=target,
            kernels=kernels,
            max_seq_len=length,
            num_threads=num_threads,
        )
        defaults = GenerationDefaults()
        if generation_config == "auto":
            defaults = load_generation_defaults(path)
            _say(defaults)
        return cls.from_model(
            loaded,
            tokenizer,
            max_seq_len=length,
            drafter=drafter,
            defaults=defaults,
            reuse_prefix=reuse_prefix,
            on_busy=on_busy,
        )

    @classmethod
    def from_model(
        cls,
        model: CausalLM,
        tokenizer: text.Tokenizer,
        *,
        max_seq_len: int,
        drafter: DrafterSpec = "ptd",
        defaults: GenerationDefaults | None = None,
        reuse_prefix: bool = False,
        on_busy: OnBusy = "wait",
    ) -> LLM:
        """Wrap a model that is already loaded (several engines may share one model's weights).

        Args:
            defaults: fill what a request's `SamplingParams` leave open; None: nothing does.
            reuse_prefix, on_busy: see `from_pretrained`.
        """
        _check_max_seq_len(max_seq_len)
        eos_ids = tuple(sorted({*model.config.eos_token_ids, *tokenizer.eos_token_ids}))
        made = make_drafter(drafter, device_type=model.device.type, eos_ids=eos_ids)
        needs = made.needs()
        # The rest of the output matrix is padding: those ids have no text.
        vocab_size = min(model.config.vocab_size, tokenizer.vocab_size)
        _check_needs(needs, vocab_size)
        runner = EagerRunner(
            model,
            max_seq_len=max_seq_len,
            max_nodes=1 + needs.max_nodes,
            top_k=needs.top_k,
            vocab_limit=vocab_size,
        )
        engine = Engine(
            runner,
            made,
            max_seq_len=max_seq_len,
            vocab_size=vocab_size,
            eos_token_ids=eos_ids,
            on_busy=on_busy,
            reuse_prefix=reuse_prefix,
        )
        return cls(engine, tokenizer, model, defaults)

    def with_drafter(self, drafter: DrafterSpec) -> LLM:
        """Another engine over the same weights and tokenizer, with its own cache and drafter."""
        return LLM.from_model(
            self.model,
            self.tokenizer,
            max_seq_len=self.engine.max_seq_len,
            drafter=drafter,
            defaults=self.defaults,
            reuse_prefix=self.engine.reuse_prefix,
            on_busy=self.engine.on_busy,
        )

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt: a text (with the model's special tokens) or ids as they are."""
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        if isinstance(prompt, bytes | bytearray | memoryview) or not isinstance(prompt, Sequence):
            raise PromptError.for_field(
                "prompt",
                prompt,
                "a string or a list of token ids",
                "Decode bytes to text; take .tolist() of an array.",
            )
        return [*prompt]

    def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Any] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a conversation in the model's chat template, ready for the answer."""
        check_messages(messages)
        return self.tokenizer.apply_chat_template(
            [dict(m) for m in messages], tools=tools, template_kwargs=template_kwargs
        )

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        streamer: Streamer | None = None,
    ) -> GenerationOutput:
        """Generate to the end.

        Args:
            prompt: a text or token ids.
            params: how to decode.
            streamer: a TextStreamer or TextIteratorStreamer of transformers, or whatever has its
                put(ids) and end(); gets the prompt, then every token of the output, then the end
                (also after an error).

        Raises:
            PromptError: the prompt is empty, too long, or holds ids outside the vocabulary.
            BusyError: see `from_pretrained`.
            EngineError: the model's output is not finite.
        """
        with Feed(streamer) as feed:
            return self._last_output(self.encode(prompt), params, feed)

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> ChunkStream:
        """Generate, yielding a chunk a step and a final one with the whole output.

        A stream that is dropped or closed early, by any thread, frees the engine at once. Errors as
        `generate`.
        """
        return self._stream(self.encode(prompt), params)

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Any] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        streamer: Streamer | None = None,
    ) -> GenerationOutput:
        """Answer a conversation: a list of {"role": ..., "content": ...}; the rest as `generate`.

        Args:
            tools: functions the model may call: JSON schemas or Python functions.
            template_kwargs: further variables of the chat template, for example `enable_thinking`.

        Raises:
            PromptError: no messages, the model has no chat template, or the template does not know
                tools or a variable.
        """
        prompt = self.encode_chat(messages, tools=tools, template_kwargs=template_kwargs)
        with Feed(streamer) as feed:
            return self._last_output(prompt, params, feed)

    def stream_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Any] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> ChunkStream:
        """As `chat`, in chunks."""
        prompt = self.encode_chat(messages, tools=tools, template_kwargs=template_kwargs)
        return self._stream(prompt, params)

    def resolve(self, params: SamplingParams | None = None) -> ResolvedParams:
        """What a request with these parameters is decoded by: open fields filled.

        Raises:
            ConfigError: not SamplingParams, or a combination that contradicts itself.
        """
        params = check_params(SamplingParams() if params is None else params)
        return params.resolved(self.defaults.taken(params.explicit))

    def _last_output(
        self, ids: list[int], params: SamplingParams | None, feed: Feed
    ) -> GenerationOutput:
        output: GenerationOutput | None = None
        with closing(self._stream(ids, params)) as chunks:
            feed.prompt(ids)
            for chunk in chunks:
                feed.tokens(chunk.token_ids)
                output = chunk.output
        assert output is not None  # the final chunk always carries it
        return output

    def _stream(self, ids: list[int], params: SamplingParams | None) -> ChunkStream:
        # Not a generator itself: a bad prompt shall fail at the call, not at the first chunk.
        params = self.resolve(params)
        decoder = self.tokenizer.decode_stream()
        stops = None
        if params.stop_strings:
            stops = text.StopStrings(decoder, params.stop_strings, include=params.include_stop_str)
        generation = self.engine.generate(ids, params, None if stops is None else stops.stops_at)
        return ChunkStream(self._chunks(ids, generation, decoder, stops), generation.close)

    def _chunks(
        self,
        ids: list[int],
        generation: Generation,
        decoder: text.IncrementalDecoder,
        stops: text.StopStrings | None,
    ) -> Generator[Chunk, None, None]:
        pieces: list[str] = []
        logprobs: list[TokenLogprobs] = []
        try:
            for step in generation:
                # With stop strings the session has shown the step's tokens to `stops` already.
                pieces.append(decoder.push(step.token_ids) if stops is None else stops.take())
                logprobs += step.logprobs or ()
                yield Chunk(pieces[-1], step.token_ids, step.accepted, None, step.logprobs)
        finally:
            generation.close()
        if generation.finish_reason is None:  # closed by another thread
            return
        pieces.append(decoder.flush() if stops is None else stops.finish())
        token_ids = generation.token_ids
        output = GenerationOutput(
            text="".join(pieces),
            token_ids=token_ids,
            finish_reason=generation.finish_reason,
            usage=Usage(prompt_tokens=len(ids), completion_tokens=len(token_ids)),
            stats=generation.stats,
            logprobs=None if generation.params.logprobs is None else logprobs,
        )
        yield Chunk(pieces[-1], [], 0, output)


def _say(defaults: GenerationDefaults) -> None:
    """Log what generation_config.json changes: a request that says nothing is altered by it."""
    taken = {name: value for name, value in defaults.taken({}).items() if value != 0.0}
    if taken:
        _log.warning(
            "generation_config.json fills what a request leaves open: %s. Load the model with "
            "generation_config='none' to ignore it.",
            ", ".join(f"{name}={value!r}" for name, value in taken.items()),
        )
    if defaults.unsupported:
        _log.warning(
            "generation_config.json sets what ptd_engine has not, and does without: %s.",
            ", ".join(defaults.unsupported),
        )


def resolve_device(device: str) -> torch.device:
    """The torch device of a name.

    Raises:
        ConfigError: not a device name.
        UnavailableError: a GPU was asked for and torch sees none.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError.for_field(
            "device", device, "'auto', 'cpu', 'cuda' or 'cuda:N'"
        ) from error
    if found.type not in ("cpu", "cuda"):
        raise ConfigError.for_field("device", device, "'auto', 'cpu', 'cuda' or 'cuda:N'")
    if found.type == "cuda" and not torch.cuda.is_available():
        raise UnavailableError.for_field(
            "device",
            device,
            "'cpu' on this machine",
            "torch sees no GPU: install a CUDA build of torch and check nvidia-smi.",
        )
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise UnavailableError.for_field(
            "device", device, f"cuda:0 to cuda:{torch.cuda.device_count() - 1}"
        )
    return found


def check_messages(messages: object) -> None:
    """Raise PromptError unless `messages` is a non-empty list of role and content strings."""
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence) or not messages:
        raise PromptError.for_field(
            "messages", messages, 'a non-empty list of {"role": ..., "content": ...}'
        )
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise PromptError.for_field(f"messages[{index}]", message, "a dict")
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                raise PromptError.for_field(
                    f"messages[{index}][{key!r}]", message.get(key), "a string"
                )


def _check_max_seq_len(value: object) -> None:
    ok = isinstance(value, int) and not isinstance(value, bool)
    if not ok or not 2 <= value <= MAX_CONTEXT:  # type: ignore[operator]
        raise ConfigError.for_field(
            "max_seq_len",
            value,
            f"an integer from 2 (one prompt token and one output token) to {MAX_CONTEXT}",
        )


def _check_needs(needs: _core.DrafterNeeds, vocab_size: int) -> None:
    for field, value, most in (
        ("max_nodes", needs.max_nodes, MAX_TREE_NODES - 1),
        ("top_k", needs.top_k, vocab_size - 1),
    ):
        if not 0 <= value <= most:
            raise ConfigError.for_field(f"drafter.needs().{field}", value, f"0 to {most}")
