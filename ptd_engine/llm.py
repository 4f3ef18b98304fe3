"""Text in, text out: the API that most users need.

llm = LLM.from_pretrained("demo")
print(llm.generate("The sky is", SamplingParams(max_new_tokens=32)).text)
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Never, Self

import torch

from ptd_engine import _core, hub, kv_cache, text
from ptd_engine.checkpoint import open_checkpoint
from ptd_engine.checkpoint.generation_defaults import (
    GenerationDefaults,
    load_generation_defaults,
)
from ptd_engine.config import MAX_TREE_NODES, ResolvedParams, SamplingParams
from ptd_engine.drafter_view import DrafterView
from ptd_engine.drafters import DrafterSpec, make_drafter, resolve
from ptd_engine.engine import Engine, check_params, check_reuse_prefix
from ptd_engine.errors import ConfigError, PromptError
from ptd_engine.kv_cache import check_context_memory, row_bytes
from ptd_engine.llm_arguments import checked_length, no_prompt, refuse_unknown, resolve_device
from ptd_engine.memory_plan import Planner
from ptd_engine.model import CausalLM, ModelConfig, load_model
from ptd_engine.model.precision import resolve_precision
from ptd_engine.outputs import ChunkStream, GenerationOutput
from ptd_engine.runner import (
    GraphsMode,
    Runner,
    StepTimes,
    check_graphs,
    check_graphs_on,
    make_runner,
)
from ptd_engine.streamers import Feed, Streamer
from ptd_engine.text import Message
from ptd_engine.text_chunks import stream_text
from ptd_engine.turnstile import OnBusy, check_on_busy

if TYPE_CHECKING:
    from ptd_engine.tensor_parallel import TensorParallel

# Without max_seq_len the cache is made for the model's context, up to this many tokens: models that
# state 128k would otherwise take gigabytes for a short chat.
DEFAULT_MAX_SEQ_LEN = 8192

_log = logging.getLogger(__name__)

Prompt = str | Sequence[int]


class LLM:
    """A model, its tokenizer and an engine, for one request at a time.

    Requests from several threads wait for each other, unless they are to err. Build it with
    `from_pretrained`.
    """

    def __new__(cls, *args: object, **settings: object) -> Self:
        """Point whoever passes a model's name, as other libraries take it, to `from_pretrained`."""
        named = args[0] if args else settings.get("model")
        if isinstance(named, str):
            raise ConfigError(
                f"LLM joins parts that are loaded already: write LLM.from_pretrained({named!r})."
            )
        return super().__new__(cls)

    def __init__(
        self,
        engine: Engine,
        tokenizer: text.Tokenizer,
        model: CausalLM,
        defaults: GenerationDefaults | None = None,
        ranks: TensorParallel | None = None,
        graphs: GraphsMode = "auto",
    ) -> None:
        self.ranks = ranks
        self.graphs: GraphsMode = graphs
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
        drafter: DrafterSpec = "hybrid",
        kernels: str = "auto",
        num_threads: int | None = None,
        tensor_parallel: int = 1,
        generation_config: str = "auto",
        reuse_prefix: bool = False,
        on_busy: OnBusy = "wait",
        graphs: GraphsMode = "auto",
        **unknown: Never,
    ) -> LLM:
        """Load a checkpoint.

        Args:
            model: a local directory, a .gguf file, a hub id, or "demo" (SmolLM2-135M-Instruct).
            dtype: "auto" (the checkpoint's; a quantised GGUF: bfloat16), "float32", "bfloat16",
                "float16", or on a CPU "int8" and "int4": quantised weights, bfloat16 otherwise.
            device: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:N".
            max_seq_len: longest prompt and output together; None takes the model's own context, up
                to 8192.
            drafter: "hybrid" (as many rows as pay on this machine: steps of several sizes are timed
                once, in seconds), "none" (plain decoding), another name of docs/drafters.md,
                its settings (a HybridConfig, PTDConfig, ...), or a Drafter object.
            kernels: backend of the operations, "auto" or a name that `ptd-engine doctor` lists.
            num_threads: threads of the CPU kernels; None takes torch's number.
            tensor_parallel: ranks that share the weights and the cache, each a process: started
                here on this machine, or by torchrun, where this call does not return on another
                rank than 0 (docs/distributed.md). `close` ends them.
            generation_config: "auto" lets the model's generation_config.json fill the fields that
                a request's `SamplingParams` leave open (a warning says with what); "none" does not
                read it for that. Its end-of-sequence ids count either way.
            reuse_prefix: do not compute again what a prompt has in common with the last request's
                prompt and output, from the first token on: the turns of a chat.
            on_busy: what a request does while one of another thread runs: "wait", or "error" for a
                BusyError.
            graphs: "auto" replays steps from CUDA graphs where there is a GPU and runs them op by
                op where that fails, with a warning; "off" has none; "require" makes it an error.
                See `warmup`.

        Raises:
            CheckpointError: files missing, incomplete or unsupported.
            ConfigError: a bad argument, or weights, cache and buffers that do not fit in memory.
            UnavailableError: a device or backend that is not here, or graphs that are required.
            DistributedError: a rank did not start, or could not load its part.
        """
        refuse_unknown("LLM.from_pretrained", unknown, _LOADING)
        if generation_config not in ("auto", "none"):
            raise ConfigError.for_field("generation_config", generation_config, "'auto' or 'none'")
        check_reuse_prefix(reuse_prefix)
        check_on_busy(on_busy)
        check_graphs(graphs)
        target = resolve_device(device)
        check_graphs_on(graphs, target, tensor_parallel)
        resolve(drafter, target.type)
        path = hub.resolve_model(model)
        checkpoint = open_checkpoint(path)
        config = ModelConfig.from_hf(checkpoint.config)
        trained = config.max_position_embeddings
        length = checked_length(
            min(trained, DEFAULT_MAX_SEQ_LEN) if max_seq_len is None else max_seq_len
        )
        precision = resolve_precision(dtype, checkpoint.dtype_name, target, kernels)
        tokenizer = text.load_tokenizer(path)
        made = _make_drafter(drafter, target, config, tokenizer)
        if tensor_parallel == 1:
            needs = made.needs()
            planner = Planner(
                checkpoint,
                precision=precision,
                device=target,
                kernels=kernels,
                max_nodes=1 + needs.max_nodes,
                top_k=needs.top_k,
                graphs=graphs == "require",  # else they are left out where there is no room
            )
            planner.check(length, kv_cache.available_bytes(target), str(target))
        if length > trained:
            _log.warning(
                "max_seq_len=%d exceeds the %d positions this model was made for: text beyond them "
                "may be of poor quality.",
                length,
                trained,
            )
        defaults = GenerationDefaults()
        if generation_config == "auto":
            defaults = load_generation_defaults(path)
            _say(defaults)
        ranks: TensorParallel | None = None
        if tensor_parallel == 1:
            loaded = load_model(
                path,
                dtype=dtype,
                device=target,
                kernels=kernels,
                max_seq_len=length,
                num_threads=num_threads,
            )
        else:
            from ptd_engine import tensor_parallel as parallel  # few need it

            ranks = parallel.start(
                path,
                tensor_parallel,
                dtype=dtype,
                device=target,
                kernels=kernels,
                max_seq_len=length,
                num_threads=num_threads,
            )
            loaded = ranks.model
        try:
            return cls.from_model(
                loaded,
                tokenizer,
                max_seq_len=length,
                drafter=made,
                defaults=defaults,
                reuse_prefix=reuse_prefix,
                on_busy=on_busy,
                graphs=graphs,
                ranks=ranks,
            )
        except BaseException:
            if ranks is not None:
                ranks.close()
            raise

    @classmethod
    def from_model(
        cls,
        model: CausalLM,
        tokenizer: text.Tokenizer,
        *,
        max_seq_len: int,
        drafter: DrafterSpec = "hybrid",
        defaults: GenerationDefaults | None = None,
        reuse_prefix: bool = False,
        on_busy: OnBusy = "wait",
        step_times: StepTimes | None = None,
        graphs: GraphsMode = "auto",
        node_buckets: Sequence[int] | None = None,
        ranks: TensorParallel | None = None,
    ) -> LLM:
        """Wrap a model that is already loaded (several engines may share one model's weights).

        Args:
            defaults: fill what a request's `SamplingParams` leave open; None: nothing does.
            reuse_prefix, on_busy, graphs: see `from_pretrained`.
            step_times: those of another engine over the same weights; see `Engine`.
            node_buckets: row counts that steps are padded to; None: what suits the device.
            ranks: whose `model` this is, if it is one rank's part.
        """
        max_seq_len = checked_length(max_seq_len)
        _check_memory(model.config, max_seq_len, model.dtype, model.device)
        made = _make_drafter(drafter, model.device, model.config, tokenizer)
        needs = made.needs()
        # The rest of the output matrix is padding: those ids have no text.
        vocab_size = min(model.config.vocab_size, tokenizer.vocab_size)
        _check_needs(needs, vocab_size)
        sizes: dict[str, Any] = {
            "max_seq_len": max_seq_len,
            "max_nodes": 1 + needs.max_nodes,
            "top_k": needs.top_k,
            "vocab_limit": vocab_size,
        }
        runner: Runner
        if ranks is None:
            buckets = {} if node_buckets is None else {"node_buckets": node_buckets}
            runner = make_runner(model, graphs=graphs, **sizes, **buckets)
        else:
            runner = ranks.make_runner(model, **sizes)
        engine = Engine(
            runner,
            made,
            max_seq_len=max_seq_len,
            vocab_size=vocab_size,
            eos_token_ids=_eos_ids(model.config, tokenizer),
            on_busy=on_busy,
            reuse_prefix=reuse_prefix,
            step_times=step_times,
        )
        return cls(engine, tokenizer, model, defaults, ranks, graphs)

    def with_drafter(
        self, drafter: DrafterSpec, *, node_buckets: Sequence[int] | None = None
    ) -> LLM:
        """Another engine over the same weights and tokenizer, with its own cache and drafter.

        Args:
            node_buckets: see `from_model`.
        """
        return LLM.from_model(
            self.model,
            self.tokenizer,
            max_seq_len=self.engine.max_seq_len,
            drafter=drafter,
            defaults=self.defaults,
            reuse_prefix=self.engine.reuse_prefix,
            on_busy=self.engine.on_busy,
            step_times=self.engine.step_times,
            graphs=self.graphs,
            node_buckets=node_buckets,
            ranks=self.ranks,
        )

    def warmup(self, *, sampling: bool = False) -> int:
        """Capture the graphs that requests may need, all at once and before the first of them;
        returns how many. See `Engine.warmup`.
        """
        return self.engine.warmup(sampling=sampling)

    def close(self) -> None:
        """End the other ranks of tensor parallelism, for all engines over these weights; without
        any there is nothing to end. The end of a `with` block does it too.
        """
        if self.ranks is not None:
            self.ranks.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def drafter(self) -> DrafterView:
        """What proposes this engine's trees; `llm.drafter.explain()` prints the last one."""
        return DrafterView(
            self.engine.drafter,
            lambda token: self.tokenizer.token_bytes(token).decode("utf-8", "replace"),
        )

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt: a text (with the model's special tokens) or ids as they are.

        Raises:
            PromptError: neither of them, or a text without any token.
        """
        if isinstance(prompt, str):
            ids = self.tokenizer.encode(prompt)
            if not ids:
                raise PromptError.for_field(
                    "prompt",
                    prompt,
                    "a text of at least one token",
                    "This model puts no BOS token in front: write something, or pass the ids to "
                    "begin with, say those of a special token in `tokenizer.special_tokens`.",
                )
            return ids
        if isinstance(prompt, bytes | bytearray | memoryview) or not isinstance(prompt, Sequence):
            raise no_prompt(prompt)
        if prompt and isinstance(prompt[0], str | Mapping | Sequence):
            raise no_prompt(prompt)
        return [*prompt]

    def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Any] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a conversation in the model's chat template, ready for the answer."""
        return self.tokenizer.apply_chat_template(
            messages, tools=tools, template_kwargs=template_kwargs
        )

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        streamer: Streamer | None = None,
        **unknown: Never,
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
            ConfigError: parameters that are none, or that contradict each other, the prompt or the
                model.
            BusyError: see `from_pretrained`.
            EngineError: the model's output is not finite, or that of a logits_processor no logits.
        """
        with Feed(streamer) as feed:
            refuse_unknown("generate", unknown, _LOADING)
            return self._last_output(self.encode(prompt), params, feed)

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        trees: bool = False,
        **unknown: Never,
    ) -> ChunkStream:
        """Generate, yielding a chunk a step and a final one with the whole output.

        A stream that is dropped or closed early, by any thread or at the end of a `with` block,
        frees the engine at once. Errors as `generate`.

        Args:
            prompt: a text or token ids.
            params: how to decode.
            trees: let every chunk hold the step's tree, to show it; costs a copy a step.
        """
        refuse_unknown("stream", unknown, _LOADING)
        return self._stream(self.encode(prompt), params, trees=trees)

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Any] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        streamer: Streamer | None = None,
        **unknown: Never,
    ) -> GenerationOutput:
        """Answer a conversation: a list of {"role": ..., "content": ...}; the rest as `generate`.

        Args:
            messages: roles are "system", "user", "assistant", "tool" and what the model's template
                names besides. Where the template reads them: tool_calls, name, reasoning_content.
            tools: functions the model may call: JSON schemas or Python functions.
            template_kwargs: further variables of the chat template, for example `enable_thinking`.

        Raises:
            PromptError: no messages, the model has no chat template, or the template does not know
                a role, a key, tools or a variable.
        """
        with Feed(streamer) as feed:  # around all that may fail: somebody may wait for the end
            refuse_unknown("chat", unknown, _LOADING)
            prompt = self.encode_chat(messages, tools=tools, template_kwargs=template_kwargs)
            return self._last_output(prompt, params, feed)

    def stream_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Any] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        trees: bool = False,
        **unknown: Never,
    ) -> ChunkStream:
        """As `chat`, in chunks; `trees` as for `stream`."""
        refuse_unknown("stream_chat", unknown, _LOADING)
        prompt = self.encode_chat(messages, tools=tools, template_kwargs=template_kwargs)
        return self._stream(prompt, params, trees=trees)

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
        with self._stream(ids, params) as chunks:
            feed.prompt(ids)
            for chunk in chunks:
                feed.tokens(chunk.token_ids)
                output = chunk.output
        assert output is not None  # the final chunk always carries it
        return output

    def _stream(
        self, ids: list[int], params: SamplingParams | None, *, trees: bool = False
    ) -> ChunkStream:
        return stream_text(self.engine, self.tokenizer, ids, self.resolve(params), trees=trees)


def _eos_ids(config: ModelConfig, tokenizer: text.Tokenizer) -> tuple[int, ...]:
    return tuple(sorted({*config.eos_token_ids, *tokenizer.eos_token_ids}))


def _make_drafter(
    drafter: DrafterSpec, device: torch.device, config: ModelConfig, tokenizer: text.Tokenizer
) -> _core.Drafter:
    eos_ids = _eos_ids(config, tokenizer)
    made = make_drafter(drafter, device_type=device.type, eos_ids=eos_ids)
    if isinstance(made, _core.PTDDrafter) and made.initialisation == "ner":
        made.set_seed_source(text.EntitySeeds(tokenizer))
    return made


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


def _check_memory(
    config: ModelConfig, length: int, dtype: torch.dtype, device: torch.device
) -> None:
    a_row = row_bytes(config.num_layers, config.num_kv_heads, config.head_dim, dtype)
    check_context_memory(length, a_row, device)


def _check_needs(needs: _core.DrafterNeeds, vocab_size: int) -> None:
    for field, value, most in (
        ("max_nodes", needs.max_nodes, MAX_TREE_NODES - 1),
        ("top_k", needs.top_k, vocab_size - 1),
    ):
        if not 0 <= value <= most:
            raise ConfigError.for_field(f"drafter.needs().{field}", value, f"0 to {most}")


_LOADING = tuple(LLM.from_pretrained.__kwdefaults__ or ())
