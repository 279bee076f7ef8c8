"""Training text: bytes of files, and the same sequences at the same step for every strategy and number of ranks."""

from __future__ import annotations

import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

MAX_BYTES = 8 << 20
"""Enough for a demo; reading more only delays the first step."""


class DataError(ValueError):
    """There is no text to train on; the message is one line."""


def read_text(path: str | None) -> bytes:
    """Bytes of a file, or of all files of a folder in the order of their names.

    Args:
        path: None is the standard library of this Python, its .py files.

    Raises:
        DataError: nothing there, or it cannot be read.
    """
    root = Path(path) if path is not None else Path(sysconfig.get_paths()["stdlib"])
    pattern = "*" if path is not None else "*.py"
    if not root.exists():
        raise DataError(f"--data {root}: no such file or folder")
    files = [root] if root.is_file() else sorted(file for file in root.glob(pattern) if file.is_file())
    text = bytearray()
    try:
        for file in files:
            text += file.read_bytes()[: MAX_BYTES - len(text)]
            if len(text) >= MAX_BYTES:
                break
    except OSError as error:
        raise DataError(f"--data {root}: {error.strerror or error}") from None
    if not text:
        raise DataError(f"--data {root}: there is no text in it")
    return bytes(text)


class Batches:
    """The endless batches of one rank.

    At step s the global batch is the same sequences whatever the world size and accumulation are; each rank takes its
    part of them, one micro-batch after the other.
    """

    def __init__(
        self, text: bytes, *, batch: int, length: int, accumulate: int, seed: int, rank: int, world_size: int
    ) -> None:
        """
        Raises:
            DataError: the text is too short, or the batch does not divide.
        """
        if len(text) <= length:
            raise DataError(f"--seq {length} needs more than {length} bytes of text, and there are {len(text)}")
        if batch % (world_size * accumulate):
            each = f"{world_size} ranks" + (f" x {accumulate} accumulated" if accumulate > 1 else "")
            raise DataError(f"--batch {batch} does not divide over {each}")
        self._text, self._length, self._seed = text, length, seed
        self._batch, self._accumulate = batch, accumulate
        self._rank, self._world_size = rank, world_size

    def __iter__(self) -> Iterator[list[tuple[Tensor, Tensor]]]:
        step = 0
        while True:
            yield self.at(step)
            step += 1

    def at(self, step: int) -> list[tuple[Tensor, Tensor]]:
        """This rank's micro-batches of a step: bytes and the bytes that follow them."""
        chance = random.Random(f"{self._seed}:{step}")
        starts = [chance.randrange(len(self._text) - self._length) for _ in range(self._batch)]
        each = self._batch // (self._world_size * self._accumulate)
        micro_batches = []
        for part in range(self._accumulate):
            first = (part * self._world_size + self._rank) * each
            rows = [self._text[start : start + self._length + 1] for start in starts[first : first + each]]
            tokens = torch.frombuffer(bytearray(b"".join(rows)), dtype=torch.uint8).view(each, -1).long()
            micro_batches.append((tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()))
        return micro_batches
