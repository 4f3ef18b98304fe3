"""What every rank but 0 does: as it is told, until rank 0 says stop or is gone."""

from __future__ import annotations

import torch

from ptd_engine.model import CausalLM
from ptd_engine.runner import EagerRunner
from ptd_engine.tensor_parallel.commands import Kind, receive
from ptd_engine.tensor_parallel.group import Group
from ptd_engine.tensor_parallel.parallel_ops import join_ranks, project_part


def follow(group: Group, part: CausalLM) -> None:
    """Obey rank 0; returns at its STOP.

    Args:
        part: this rank's model, as loaded.

    Raises:
        DistributedError: rank 0 or another rank is gone.
    """
    model = join_ranks(part, group)
    config, runners = model.config, dict[int, EagerRunner]()
    while True:
        command, payload = receive(group)
        if command.kind == Kind.STOP:
            return
        if command.kind == Kind.OPEN:
            runners[command.runner] = EagerRunner(
                model, max_seq_len=command.a, max_nodes=command.b, max_path=command.c
            )
        elif command.kind == Kind.PREFILL:
            ids = payload.view(torch.int32).tolist()
            runners[command.runner].prefill(ids, prompt_len=command.b, start=command.a)
        elif command.kind == Kind.STEP:
            runner = runners[command.runner]
            runner.staging[: payload.numel()] = payload.numpy()
            runner.launch(command.a)
            runner.wait()  # the next plan overwrites the staged one
        else:
            shape = (command.a, config.hidden_size)
            hidden = torch.empty(shape, dtype=model.dtype, device=model.device)
            group.broadcast(hidden)
            with torch.inference_mode():
                own = project_part(
                    part.ops,
                    group,
                    config.vocab_size,
                    hidden,
                    model.weights.lm_head,
                    model.logits_dtype,
                )
                group.gather(own, None)
