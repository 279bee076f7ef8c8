"""The public surface of `fsdp_tui.runner`, and the demo that uses nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fsdp_tui.runner
from fsdp_tui.demo.data import Batches, DataError, read_text
from fsdp_tui.demo.model import SHAPES, build
from fsdp_tui.demo.train import main
from fsdp_tui.telemetry.launch import MODELS


def test_the_surface_is_what_it_says() -> None:
    """Every name is there, and no other is promised."""
    assert sorted(fsdp_tui.runner.__all__) == ["Run", "ShardingError", "log", "no_sync", "shard", "unwatched", "watch"]
    for name in fsdp_tui.runner.__all__:
        assert getattr(fsdp_tui.runner, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'shards'"):
        fsdp_tui.runner.shards  # noqa: B018


def test_importing_it_does_not_import_torch() -> None:
    """The launcher lives in the same package and must not pay for torch."""
    code = "import sys, fsdp_tui.runner; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_the_sizes_are_those_of_the_launch_form() -> None:
    """One list of names; tiny has about a million parameters, gpt2 has GPT-2's blocks."""
    assert tuple(SHAPES) == MODELS
    assert 0.9e6 < sum(parameter.numel() for parameter in build("tiny", 128, 0).parameters()) < 1.2e6
    with torch.device("meta"):
        gpt2 = build("gpt2", 1024, 0)
    per_block = sum(parameter.numel() for parameter in gpt2.blocks[0].parameters())
    assert per_block == 12 * 768 * 768 + 13 * 768


def test_weights_depend_on_the_seed_only() -> None:
    """All ranks and strategies start from the same weights."""
    first, again, other = (build("tiny", 16, seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


@pytest.mark.parametrize(("world_size", "accumulate"), [(1, 1), (2, 1), (4, 1), (1, 4), (2, 2)])
def test_every_division_trains_on_the_same_sequences(world_size: int, accumulate: int) -> None:
    """The global batch of a step is the same for all ranks and accumulations."""
    text = bytes(range(256)) * 4

    def rows(world_size: int, accumulate: int) -> list[list[int]]:
        parts = []
        for part in range(accumulate):
            for rank in range(world_size):
                batches = Batches(
                    text, batch=8, length=16, accumulate=accumulate, seed=1, rank=rank, world_size=world_size
                )
                parts += batches.at(5)[part][0].tolist()
        return parts

    assert rows(world_size, accumulate) == rows(1, 1)


def test_targets_are_the_next_bytes() -> None:
    """The model learns to continue the text."""
    batches = Batches(b"abcdefghij" * 20, batch=2, length=5, accumulate=1, seed=0, rank=0, world_size=1)
    tokens, targets = next(iter(batches))[0]
    assert tokens[:, 1:].equal(targets[:, :-1])


def test_data_that_cannot_be_used_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Missing, empty and too short text, and a batch that does not divide."""
    empty, short = tmp_path / "empty.txt", tmp_path / "short.txt"
    empty.write_bytes(b"")
    short.write_bytes(b"short")
    with pytest.raises(DataError, match="no such file or folder"):
        read_text(str(tmp_path / "nothing"))
    with pytest.raises(DataError, match="there is no text in it"):
        read_text(str(empty))
    with pytest.raises(DataError, match="needs more than 128 bytes"):
        Batches(read_text(str(short)), batch=1, length=128, accumulate=1, seed=0, rank=0, world_size=1)
    with pytest.raises(DataError, match="does not divide over 2 ranks x 2 accumulated"):
        Batches(b"x" * 100, batch=6, length=5, accumulate=2, seed=0, rank=0, world_size=2)
    assert main(["--data", str(short), "--steps", "1"]) == 2
    assert capsys.readouterr().err.startswith("fsdp-tui demo: --seq 128 needs more than 128 bytes")


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path: Path) -> None:
    """The same text on every machine."""
    (tmp_path / "b.txt").write_bytes(b"second")
    (tmp_path / "a.txt").write_bytes(b"first ")
    assert read_text(str(tmp_path)) == b"first second"
    assert len(read_text(None)) > 1 << 20


def test_the_demo_trains_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Plain python, no hub, no torchrun."""
    assert main(["--steps", "2", "--batch", "2", "--seq", "16"]) == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [["step", "1"], ["step", "2"]]
