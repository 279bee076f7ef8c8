"""Scripts that know nothing of us: the same with and without being watched, and seen as what they are.

Each is run twice: by Python alone, and by the installed program.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.e2e.conftest import Program, program_in
from tests.launch.scripts import Ended, left_by, run_alone, run_watched
from tests.launch.theory import Rule, Shapes, adam, by_unit, fsdp1, fsdp1_original, fsdp2, whole
from tests.scripts.toy import Model

SCRIPTS = Path(__file__).parent.parent / "scripts"

# What is expected


def shapes_of(model: Model) -> Shapes:
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


TOY = shapes_of(Model())


def by_block(shapes: Shapes, rule: Rule = fsdp2) -> dict[str, int]:
    return by_unit(shapes, [f"blocks.{at}" for at in range(3)], rule)


ADAPTED: Shapes = {
    **{name: shape for name, shape in TOY.items() if not name.startswith("blocks.")},
    **{
        f"blocks.{block}.{part}.{name}": shape
        for block in range(2)
        for part, into, out in (("up", 15, 30), ("down", 30, 15))
        for name, shape in (
            ("base.weight", (out, into)),
            ("base.bias", (out,)),
            ("a.weight", (3, into)),
            ("b.weight", (out, 3)),
        )
    },
}
"""`lora.py`'s, in the order in which PyTorch flattens them."""
STACK: Shapes = {
    f"blocks.{block}.{name.removeprefix('blocks.0.')}": shape
    for block in range(3)
    for name, shape in TOY.items()
    if name.startswith("blocks.0.")
}
WIDER = shapes_of(Model(layers=3, width=21))
GAN = {"generator": [(21, 7), (21,), (5, 21), (5,)], "critic": [(9, 5), (9,), (1, 9), (1,)]}
TIED = {name: shape for name, shape in TOY.items() if name != "head.weight"}

Check = Callable[[dict[str, Any], Ended], None]


@dataclass(frozen=True)
class Script:
    """One script, and what the program must show of it."""

    words: Sequence[str]
    steps: int
    effective: str
    units: Mapping[str, int]
    params: Shapes
    """As the script's author sees them; a tied one once."""
    ranks: int = 2
    adam: bool = False
    """Whether AdamW trains all of them, as FSDP2's parameters or whole ones."""
    held: Callable[[int], int] | None = None
    """Bytes of param_shard on a rank, where that is not the sum over units."""
    quick: bool = False
    """Whether `make test` runs it."""
    warns: Sequence[str] = ()
    """Kinds of the warnings that are due."""
    broken: str = ""
    """What is not as it should be yet."""
    also: Check | None = None


def says(key: str, *words: str) -> Check:
    """A probe's word on what is not covered."""

    def check(document: dict[str, Any], _: Ended) -> None:
        said = document["telemetry"]["probes"][key]
        assert said.startswith("not available: "), said
        assert all(word in said for word in words), said

    return check


def ranks_are_the_processes_that_trained(document: dict[str, Any], watched: Ended) -> None:
    """And not the loader's workers, which differentiate something of their own."""
    printed = [int(log.split(b"pid ")[1].split()[0]) for log in watched.logs]
    assert [rank["pid"] for rank in document["ranks"]] == printed
    assert document["phases_ns"]["input"] is not None


def loss_is_a_sum_of(backwards: int) -> Check:
    def check(document: dict[str, Any], _: Ended) -> None:
        assert f"sum of {backwards} backwards" in str(document["strategy"]["detail"]["loss"])

    return check


def tied_once(document: dict[str, Any], _: Ended) -> None:
    aliases = {"name": "embed.weight", "aliases": ["head.weight"], "bytes": 4 * 33 * 15}
    assert document["model"]["tied"] == [aliases]


def frozen(document: dict[str, Any], _: Ended) -> None:
    trained = sum(prod(shape) for name, shape in ADAPTED.items() if name.split(".")[-2] in ("a", "b"))
    assert document["model"]["trainable_params"] == trained
    assert document["model"]["frozen_bytes"] == whole(ADAPTED.values()) - 4 * trained


def checkpoint_has_its_phase(document: dict[str, Any], _: Ended) -> None:
    assert document["phases_ns"]["checkpoint"] > 0


def forgets_the_first_model(document: dict[str, Any], _: Ended) -> None:
    """Its memory is not the second one's."""
    for rank in document["ranks"]:
        assert rank["memory"]["grad_shard"] == fsdp2(WIDER.values())


def tensor_parallel(rank: int) -> Shapes:
    """A rank's part of each parameter before FSDP2 shards it: tensor parallelism gives 17 of 33 rows to the first of two."""
    rows = 17 if rank % 2 == 0 else 16
    halves = {"up.weight": (16, 16), "up.bias": (16,), "down.weight": (16, 16), "down.bias": (16,)}
    return {
        "embed.weight": (rows, 16),
        "head.weight": (rows, 16),
        "head.bias": (rows,),
        **{f"blocks.{block}.{name}": shape for block in range(2) for name, shape in halves.items()},
    }


FSDP2 = "fsdp2:full_shard"
TRAININGS = {
    "guide: fsdp1 whole": Script(
        ["guide_fsdp1.py"],
        8,
        "fsdp1:full_shard",
        {"<root>": fsdp1(TOY.values())},
        TOY,
        quick=True,
        warns=["one_big_unit"],
    ),
    "guide: fsdp1 by size": Script(
        ["guide_size_policy.py"], 8, "fsdp1:full_shard", by_block(TOY, fsdp1), TOY, quick=True
    ),
    "guide: fsdp1 transformer": Script(
        ["guide_transformer_policy.py"], 8, "fsdp1:shard_grad_op", by_block(TOY, fsdp1_original), TOY, quick=True
    ),
    "guide: fsdp2 per block": Script(["guide_fsdp2.py"], 8, FSDP2, by_block(STACK), STACK, adam=True, quick=True),
    "fsdp2 from the meta device": Script(
        ["fsdp2_meta.py", "--lr", "1e-2", "--n", "7"],
        7,
        "fsdp2:shard_grad_op",
        by_block(TOY),
        TOY,
        adam=True,
        quick=True,
        also=ranks_are_the_processes_that_trained,
    ),
    "ddp": Script(["ddp.py"], 8, "ddp", {}, TOY),
    "composable replicate": Script(["composable_replicate.py"], 8, "ddp", {}, TOY, adam=True),
    "single": Script(["single.py"], 12, "single", {}, TOY, ranks=1, adam=True),
    "accumulation fsdp1": Script(
        ["accumulate_fsdp1.py"], 6, "fsdp1:full_shard", by_block(TOY, fsdp1), TOY, also=loss_is_a_sum_of(3)
    ),
    "accumulation fsdp2": Script(
        ["accumulate_fsdp2.py"],
        6,
        FSDP2,
        {
            "blocks.0": fsdp2(shape for name, shape in TOY.items() if name.startswith("blocks.")),
            "<root>": by_block(TOY)["<root>"],
        },
        TOY,
        also=loss_is_a_sum_of(2),
    ),
    "scaler that skips a step": Script(["scaler_ddp.py"], 8, "ddp", {}, TOY),
    "fsdp1's scaler": Script(["scaler_fsdp1.py"], 6, "fsdp1:full_shard", by_block(TOY, fsdp1), TOY),
    "checkpointing before": Script(["checkpointing_before.py"], 8, FSDP2, by_block(TOY), TOY, adam=True),
    "checkpointing after": Script(
        ["checkpointing_after.py"], 8, "fsdp1:full_shard", by_block(TOY, fsdp1_original), TOY
    ),
    "compiled by block": Script(["compile_blocks.py"], 8, FSDP2, by_block(TOY), TOY, adam=True),
    "compiled whole": Script(["compile_whole.py"], 8, "fsdp1:full_shard", by_block(TOY, fsdp1_original), TOY),
    "two models": Script(
        ["two_models.py"],
        8,
        FSDP2,
        {name: fsdp2(shapes) for name, shapes in GAN.items()},
        {f"{name}.{at}": shape for name, shapes in GAN.items() for at, shape in enumerate(shapes)},
        adam=True,
        warns=["uneven_shards"],
    ),
    "wrapped after the optimizer": Script(["wrapped_late.py"], 8, FSDP2, by_block(TOY), TOY, adam=True, quick=True),
    "tied": Script(["tied.py"], 8, FSDP2, by_block(TIED), TIED, adam=True, also=tied_once),
    "frozen": Script(
        ["lora.py"],
        8,
        "fsdp1:full_shard",
        by_block(ADAPTED, fsdp1_original),
        ADAPTED,
        also=frozen,
        warns=["frozen_mixed"],
    ),
    "distributed checkpoint": Script(
        ["saves_and_loads.py"],
        6,
        FSDP2,
        by_block(TOY),
        TOY,
        adam=True,
        quick=True,
        also=checkpoint_has_its_phase,
    ),
    "tensor parallel": Script(
        ["tensor_parallel.py"],
        6,
        FSDP2,
        by_block(tensor_parallel(0)),
        shapes_of(Model(width=16)),
        ranks=4,
        held=lambda rank: fsdp2(tensor_parallel(rank).values()),
    ),
    "closure": Script(["closure.py"], 8, FSDP2, by_block(TOY), TOY, adam=True),
    "line search": Script(["lbfgs.py"], 6, "ddp", {}, TOY),
    "autograd.backward": Script(["autograd_backward.py"], 8, FSDP2, by_block(TOY), TOY, adam=True),
    "a step that raises": Script(
        ["step_raises.py"], 8, FSDP2, by_block(TOY), TOY, adam=True, quick=True, also=loss_is_a_sum_of(2)
    ),
    "two optimizers": Script(["two_optimizers.py"], 8, FSDP2, by_block(TOY), TOY),
    "optimizer in backward": Script(
        ["optimizer_in_backward.py"], 8, FSDP2, by_block(TOY), TOY, adam=True, also=says("optimizer", "inside backward")
    ),
    "evaluation between steps": Script(["evaluates.py"], 8, FSDP2, by_block(TOY), TOY, adam=True),
    "another model": Script(
        ["rebuilds.py"], 10, FSDP2, by_block(WIDER), WIDER, adam=True, also=forgets_the_first_model
    ),
    "modules with our names": Script(
        ["names/train.py", "-m", "--nproc", "7"],
        6,
        FSDP2,
        {"<root>": fsdp2([(5, 3), (5,), (1, 5), (1,)])},
        {"0.weight": (5, 3), "0.bias": (5,), "2.weight": (1, 5), "2.bias": (1,)},
        quick=True,
        warns=["one_big_unit", "states_off_theory", "uneven_shards"],
    ),
    "-m package.module": Script(
        ["-m", "package.training.main", "--steps", "9"],
        6,
        "ddp",
        {},
        {"0.w": (3, 3), "0.b": (3,), "1.w": (3, 3), "1.b": (3,), "out.w": (1, 3), "out.b": (1,)},
    ),
}

# Running


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """The installed program, started where the scripts are."""
    return replace(program_in(tmp_path_factory.mktemp("scripts")), directory=SCRIPTS)


def alone(words: Sequence[str], folder: Path, ranks: int = 2) -> Ended:
    return run_alone(words, folder / "alone", ranks, directory=SCRIPTS)


def marks_of(script: Script) -> list[pytest.MarkDecorator]:
    slow = [] if script.quick else [pytest.mark.matrix]
    return [*slow, pytest.mark.xfail(reason=script.broken, strict=True)] if script.broken else slow


def warnings(document: dict[str, Any]) -> set[str]:
    return {verdict["kind"] for verdict in document["verdict"] if verdict["severity"] in ("warn", "bad")}


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks_of(one)) for name, one in TRAININGS.items()])
def test_a_script_trains_as_without_us_and_is_seen(name: str, program: Program, tmp_path: Path) -> None:
    """Output to the last bit; and the strategy, units, bytes, steps and losses of what it trains."""
    script = TRAININGS[name]
    plain = alone(script.words, tmp_path, script.ranks)
    assert plain.codes == [0] * script.ranks, plain.logs
    document, ours = run_watched(program, script.words, script.ranks)
    assert ours.said == plain.said

    run = document["run"]
    assert (run["state"], run["exit_codes"]) == ("finished", {str(rank): 0 for rank in range(script.ranks)})
    losses = plain.losses
    assert list(losses) == list(range(1, script.steps + 1)), "the script itself"
    assert (run["steps"], document["loss"]["steps"]) == (script.steps, list(losses))
    assert document["loss"]["values"] == pytest.approx(list(losses.values()), rel=1e-6)

    assert document["strategy"]["effective"] == script.effective
    assert document["strategy"]["requested"] is None
    assert {unit["name"]: unit["shard_bytes"] for unit in document["units"]} == dict(script.units)
    assert document["model"]["params"] == sum(prod(shape) for shape in script.params.values())
    assert len(document["ranks"]) == script.ranks
    for rank in document["ranks"]:
        memory = rank["memory"]
        held = script.held(rank["rank"]) if script.held else sum(script.units.values()) or whole(script.params.values())
        assert memory["param_shard"] == held
        assert memory["total"] == sum(part or 0 for part in list(memory.values())[:10])
        if script.adam:
            sharded = 2 if script.units else 1
            assert memory["optimizer"] == adam(script.params.values(), rank["rank"] if script.units else 0, sharded)
        assert (rank["steps"], rank["dropped"]) == (script.steps, 0)
    assert document["telemetry"]["bad_records"] == 0
    assert warnings(document) == set(script.warns)
    assert not {"not_recorded", "not_watched", "not_covered"} & {verdict["kind"] for verdict in document["verdict"]}
    if script.also is not None:
        script.also(document, ours)


@pytest.mark.matrix
def test_a_loader_that_is_iterated_over_is_an_input(program: Program) -> None:
    """Also one that the loop began to iterate over before its first forward."""
    document, _ = run_watched(program, ["fsdp2_meta.py", "--lr", "1e-2"])
    assert document["phases_ns"]["input"] > 0
    assert document["telemetry"]["probes"]["input"] == "ok"


# Scripts that end otherwise


def test_one_that_raises_fails_with_its_own_traceback(program: Program, tmp_path: Path) -> None:
    """In rank 1, in its fifth step: the run is failed, by rank 1, and has four steps."""
    plain = alone(["raises.py"], tmp_path)
    document, ours = run_watched(program, ["raises.py"], code=1)
    assert plain.codes[1] == ours.codes[1] == 1
    assert ours.said[1] == plain.said[1]
    run = document["run"]
    assert (run["state"], run["failed_rank"]) == ("failed", 1)
    assert run["reason"] == "rank 1 exited with 1: ValueError: no such layer: blocks.7"
    assert document["loss"]["values"] == pytest.approx(list(ours.losses.values()), rel=1e-6)
    assert (run["steps"], ours.losses) == (4, plain.losses)


@pytest.mark.matrix
def test_one_that_exits_with_a_code_has_it(program: Program, tmp_path: Path) -> None:
    """All ranks leave with 3; torchrun may end the second one before it does."""
    plain = alone(["exits.py"], tmp_path)
    document, ours = run_watched(program, ["exits.py"], code=1)
    assert {3} <= set(plain.codes) <= {3, -15}
    assert {3} <= set(ours.codes) <= {3, -15}
    run = document["run"]
    assert (run["state"], run["exit_codes"][str(run["failed_rank"])], run["steps"]) == ("failed", 3, 4)
    assert run["reason"].startswith(f"rank {run['failed_rank']} exited with 3")
    assert ours.said[0] == plain.said[0]


@pytest.mark.matrix
def test_one_that_hangs_ends_when_gloo_gives_up(program: Program, tmp_path: Path) -> None:
    """Rank 0 waits for rank 1, which waits elsewhere: we neither keep it waiting nor hide what it ended with."""
    plain = alone(["hangs.py"], tmp_path)
    document, ours = run_watched(program, ["hangs.py"], code=1)
    assert plain.codes == ours.codes == [1, -15]
    run = document["run"]
    assert (run["state"], run["failed_rank"]) == ("failed", 0)
    assert "Timed out waiting 6000ms" in run["reason"]
    assert document["loss"]["steps"] == [1, 2, 3, 4, 5]
    # Rank 1 has not gone on after its fifth step, which is when a step is known to be over.
    assert {rank["rank"]: rank["steps"] for rank in document["ranks"]} == {0: 5, 1: 4}


def test_ranks_that_nothing_connects_are_watched_each_and_a_warning(program: Program, tmp_path: Path) -> None:
    """They finish, and nobody waits for the other at a boundary; training unsynchronised in silence is the worst outcome."""
    plain = alone(["never_wraps.py"], tmp_path)
    document, ours = run_watched(program, ["never_wraps.py"])
    assert ours.said == plain.said
    assert (document["run"]["state"], document["run"]["steps"]) == ("finished", 8)
    assert (document["strategy"]["effective"], document["units"]) == ("single", [])
    assert [rank["memory"]["param_shard"] for rank in document["ranks"]] == [whole(TOY.values())] * 2
    assert document["loss"]["values"] == pytest.approx(list(plain.losses.values()), rel=1e-6)
    assert warnings(document) == {"ranks_apart"}


@pytest.mark.matrix
def test_what_it_prints_is_left_alone(program: Program, tmp_path: Path) -> None:
    """Bytes that are no text, lines that do not end, stdout and stderr in the order of writing."""
    plain = alone(["prints.py"], tmp_path)
    document, ours = run_watched(program, ["prints.py"])
    assert ours.logs == plain.logs
    assert ours.logs[1].endswith(b"no newline at the end")
    assert document["run"]["steps"] == 6


@pytest.mark.matrix
def test_without_telemetry_nothing_is_watched(program: Program, tmp_path: Path) -> None:
    """The same output, and a record of the launch alone."""
    plain = alone(["guide_fsdp2.py"], tmp_path)
    document, ours = run_watched(program, ["--telemetry", "off", "guide_fsdp2.py"])
    assert ours.said == plain.said
    assert (document["run"]["state"], document["run"]["steps"], document["units"]) == ("finished", 0, [])


def test_one_that_saves_on_sigterm_saves_when_it_is_stopped(program: Program, tmp_path: Path) -> None:
    """All ranks get the signal at one step, and end as the script has them end."""
    here = replace(program, directory=tmp_path)
    launcher = here.start(
        "run", "--headless", "--nproc", "2", "--steps", "100000", str(SCRIPTS / "saves_on_sigterm.py")
    )
    try:
        until(lambda: here.json("show", "saves_on_sigterm")["run"]["steps"] > 5)
        here("stop", "saves_on_sigterm")
        assert launcher.wait(30) == 0
    finally:
        launcher.kill()
        launcher.wait()
    document = here.json("show", "saves_on_sigterm")
    run = document["run"]
    assert (run["state"], run["stop_rung"], run["exit_codes"]) == ("stopped", "agreed", {"0": 0, "1": 0})
    saved = [torch.load(tmp_path / f"saved-{rank}.pt") for rank in range(2)]
    assert saved[0]["step"] == saved[1]["step"] >= run["steps"] > 5
    assert [log.splitlines()[-1] for log in left_by(here, document).logs] == [b"saved %d" % saved[0]["step"]] * 2


def until(met: Callable[[], bool], patience_s: float = 60) -> None:
    """Waits for a run that may not be there yet."""
    deadline_s = time.monotonic() + patience_s
    while True:
        with suppress(AssertionError):  # no such run yet
            if met():
                return
        assert time.monotonic() < deadline_s, f"not within {patience_s} s"
        time.sleep(0.2)
