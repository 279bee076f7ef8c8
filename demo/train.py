"""The training that `fsdp-tui demo` shows: the same loop for every strategy, through the public API only."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fsdp_tui.demo.data import Batches, DataError, read_text
from fsdp_tui.demo.model import SHAPES, build
from fsdp_tui.runner import ShardingError, no_sync, shard, watch

PRINT_EVERY = 10


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line.

    Raises:
        SystemExit: with code 2 and one line on stderr.
    """
    parser = argparse.ArgumentParser(prog="python -m fsdp_tui.demo", description="Train a small GPT on bytes of text.")
    parser.add_argument("--model", choices=list(SHAPES), default="tiny")
    parser.add_argument("--batch", type=_positive, default=8, help="sequences per optimizer step over all ranks")
    parser.add_argument("--seq", type=_positive, default=128, help="bytes per sequence")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate of AdamW")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and data order")
    parser.add_argument("--data", help="file or folder of text (default: Python's standard library)")
    parser.add_argument("--accumulate", type=_positive, default=1, help="backwards per optimizer step")
    parser.add_argument("--no-sync", action="store_true", help="reduce gradients in the last of them only")
    parser.add_argument("--steps", type=_positive, help="optimizer steps (default: until stopped)")
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, got {value}")
    return value


def train(chosen: argparse.Namespace) -> list[float]:
    """Trains until told to stop, or for `chosen.steps`; gives this rank's losses.

    Raises:
        DataError: there is nothing to train on.
        ShardingError: the launched strategy cannot be applied here.
    """
    model = shard(build(chosen.model, chosen.seq, chosen.seed))
    device = next(model.parameters()).device if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cpu" and torch.cuda.is_available():  # offloaded shards live on the host, compute does not
        device = torch.device("cuda", torch.cuda.current_device())
    optimizer = torch.optim.AdamW(model.parameters(), lr=chosen.lr)
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    batches = Batches(
        read_text(chosen.data),
        batch=chosen.batch,
        length=chosen.seq,
        accumulate=chosen.accumulate,
        seed=chosen.seed,
        rank=rank,
        world_size=world_size,
    )
    losses: list[float] = []
    with watch(model, optimizer) as run:
        for micro_batches in run.batches(batches):
            optimizer.zero_grad()
            loss = accumulate(model, micro_batches, device, skip_sync=chosen.no_sync)
            optimizer.step()
            losses.append(float(loss))
            step = len(losses)
            going_on = run.step(loss) and step != chosen.steps
            if rank == 0 and (step % PRINT_EVERY == 0 or step == 1 or not going_on):
                print(f"step {step} loss {losses[-1]:.4f}", flush=True)
            if not going_on:
                break
    return losses


def accumulate(
    model: nn.Module, micro_batches: list[tuple[Tensor, Tensor]], device: torch.device, *, skip_sync: bool
) -> Tensor:
    """Runs forward and backward of each micro-batch; gives the mean loss."""
    losses = []
    for at, (tokens, targets) in enumerate(micro_batches):
        last = at == len(micro_batches) - 1
        with no_sync(model) if skip_sync and not last else contextlib.nullcontext():
            loss = model(tokens.to(device), targets.to(device))
            (loss / len(micro_batches)).backward()
        losses.append(loss.detach())
    return torch.stack(losses).mean()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demo; bad input is one line and exit code 2."""
    chosen = options(arguments)
    try:
        train(chosen)
    except (DataError, ShardingError) as error:
        print(f"fsdp-tui demo: {error}", file=sys.stderr)
        return 2
    finally:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    return 0
