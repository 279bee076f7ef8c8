"""Real gloo ranks: one world is started once and runs many cases, and all are forked where torch is there already."""

from __future__ import annotations

import gc
import multiprocessing
import os
import queue
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

Work = Callable[..., Any]


def run_world(size: int, work: Work, *args: Any, timeout_s: float = 500.0) -> list[Any]:
    """Runs `work(*args)` on every rank of a new world and gives what each returned, by rank.

    Raises:
        AssertionError: a rank raised (with its traceback), died or did not come back in time.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.dist.preloaded"])
    answers: Any = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        meeting = Path(folder) / "meeting"
        ranks = [
            context.Process(target=_rank_main, args=(rank, size, str(meeting), answers, work, args), daemon=True)
            for rank in range(size)
        ]
        for process in ranks:
            process.start()
        try:
            return _collect(size, answers, ranks, timeout_s)
        finally:
            for process in ranks:
                process.join(60)
                if process.is_alive():
                    process.kill()


def _collect(size: int, answers: Any, ranks: list[Any], timeout_s: float) -> list[Any]:
    results: dict[int, Any] = {}
    waited = 0.0
    while len(results) < size:
        try:
            rank, ok, value = answers.get(timeout=1.0)
        except queue.Empty:
            waited += 1.0
            dead = [at for at, process in enumerate(ranks) if process.exitcode not in (None, 0)]
            assert not dead, f"ranks {dead} died: exit codes {[ranks[at].exitcode for at in dead]}"
            assert waited < timeout_s, f"only ranks {sorted(results)} of {size} came back"
            continue
        assert ok, f"rank {rank} failed:\n{value}"
        results[rank] = value
    return [results[rank] for rank in range(size)]


def _rank_main(rank: int, size: int, meeting: str, answers: Any, work: Work, args: tuple[Any, ...]) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank))
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    gc.freeze()  # torch's own objects: each of many searches and collections would go through all of them
    try:
        answers.put((rank, True, work(*args)))
    except BaseException:  # noqa: BLE001  # it is the parent's to judge
        answers.put((rank, False, traceback.format_exc()))
    finally:
        dist.destroy_process_group()
