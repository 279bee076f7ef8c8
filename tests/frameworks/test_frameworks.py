"""Trainings by frameworks, none of which knows of us: the same losses with and without being watched, and seen as what
they are.

They come with `make test-all` (the optional dependencies `frameworks`); torchtitan, which needs 1 GB of triton, is tested
where it is installed. Models are made from configurations: nothing is downloaded. Where a framework refuses FSDP without an
accelerator, `lifted/sitecustomize.py` lifts that.
"""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Program, program_in
from tests.launch.scripts import Ended, run_alone, run_watched
from tests.launch.theory import Shapes, by_unit, fsdp1_original, fsdp2

HERE = Path(__file__).parent

pytestmark = pytest.mark.matrix

# What is trained


def llama(*, adapters: bool = False, prefix: str = "") -> Shapes:
    """The parameters of the scripts' LlamaForCausalLM; with PEFT's adapters on two projections of each layer."""
    square, wide, rank = (24, 24), (40, 24), 3
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (51, 24)}
    for layer in range(3):
        attention = f"model.layers.{layer}.self_attn"
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            if adapters and name in ("q_proj", "v_proj"):
                shapes[f"{attention}.{name}.base_layer.weight"] = square
                shapes[f"{attention}.{name}.lora_A.default.weight"] = (rank, 24)
                shapes[f"{attention}.{name}.lora_B.default.weight"] = (24, rank)
            else:
                shapes[f"{attention}.{name}.weight"] = square
        rest: dict[str, tuple[int, ...]] = {"mlp.gate_proj": wide, "mlp.up_proj": wide, "mlp.down_proj": (24, 40)}
        rest |= {"input_layernorm": (24,), "post_attention_layernorm": (24,)}
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in rest.items()}
    shapes |= {"model.norm.weight": (24,), "lm_head.weight": (51, 24)}
    return {f"{prefix}{name}": shape for name, shape in shapes.items()}


def regression(prefix: str = "") -> Shapes:
    """The parameters of the Lightning scripts' network."""
    layers = {"0": (15, 7), "1.0": (31, 15), "1.2": (15, 31), "2.0": (31, 15), "2.2": (15, 31), "3": (3, 15)}
    return {
        f"{prefix}{name}.{part}": shape[: 2 if part == "weight" else 1]
        for name, shape in layers.items()
        for part in ("weight", "bias")
    }


def titan() -> Shapes:
    """torchtitan's debug model: six layers of width 256, and 768 inside the feed-forward parts."""
    layer = {f"attention.w{name}": (256, 256) for name in "qkvo"}
    layer |= {"feed_forward.w1": (768, 256), "feed_forward.w2": (256, 768), "feed_forward.w3": (768, 256)}
    shapes: dict[str, tuple[int, ...]] = {"tok_embeddings.weight": (2048, 256)}
    for at in range(6):
        shapes |= {f"layers.{at}.{name}.weight": shape for name, shape in layer.items()}
        shapes |= {f"layers.{at}.{name}.weight": (256,) for name in ("attention_norm", "ffn_norm")}
    return shapes | {"norm.weight": (256,), "output.weight": (2048, 256)}


LAYERS = [f"model.layers.{at}" for at in range(3)]
PEFT = "base_model.model."


def joined(units: dict[str, int], one: str, other: str) -> dict[str, int]:
    """Two modules that are one unit, which has the first one's name."""
    return {name: nbytes + units[other] * (name == one) for name, nbytes in units.items() if name != other}


ENDS = ["model.embed_tokens", "model.norm", "lm_head"]
ADAPTERS = [
    f"{PEFT}{layer}.self_attn.{projection}.lora_{part}.default"
    for layer in LAYERS
    for projection in ("q_proj", "v_proj")
    for part in "AB"
]


@dataclass(frozen=True)
class Training:
    """One training, and what the program must show of it."""

    words: Sequence[str]
    needs: Sequence[str]
    steps: int
    effective: str
    units: Mapping[str, int]
    params: Shapes
    backwards: int = 1
    broken: str = ""
    """What is not as it should be yet."""


HUGGING_FACE = ("accelerate", "transformers")
FSDP1, FSDP2 = "fsdp1:full_shard", "fsdp2:full_shard"
LLAMA_1 = by_unit(llama(), LAYERS, fsdp1_original)
LLAMA_2 = joined(by_unit(llama(), [*LAYERS, *ENDS], fsdp2), "model.norm", "lm_head")
ADAPTED = llama(adapters=True, prefix=PEFT)
LORA_1 = by_unit(ADAPTED, [*(PEFT + layer for layer in LAYERS), *ADAPTERS], fsdp1_original)
LORA_2 = by_unit(ADAPTED, [PEFT + name for name in (*LAYERS, "model.embed_tokens", "lm_head")], fsdp2)
TRAININGS = {
    "accelerate fsdp1": Training(["accelerate_loop.py", "1"], HUGGING_FACE, 8, FSDP1, LLAMA_1, llama()),
    "accelerate fsdp2": Training(["accelerate_loop.py", "2"], HUGGING_FACE, 8, FSDP2, LLAMA_2, llama()),
    "Trainer fsdp1": Training(["trainer.py", "1", "1"], HUGGING_FACE, 6, FSDP1, LLAMA_1, llama()),
    "Trainer fsdp1, accumulation": Training(["trainer.py", "1", "2"], HUGGING_FACE, 6, FSDP1, LLAMA_1, llama(), 2),
    "Trainer fsdp2": Training(["trainer.py", "2", "1"], HUGGING_FACE, 6, FSDP2, LLAMA_2, llama()),
    "Trainer fsdp2, accumulation": Training(["trainer.py", "2", "2"], HUGGING_FACE, 6, FSDP2, LLAMA_2, llama(), 2),
    "PEFT fsdp1": Training(["trainer.py", "1", "1", "lora"], (*HUGGING_FACE, "peft"), 6, FSDP1, LORA_1, ADAPTED),
    "PEFT fsdp2": Training(["trainer.py", "2", "1", "lora"], (*HUGGING_FACE, "peft"), 6, FSDP2, LORA_2, ADAPTED),
    "Fabric fsdp1": Training(
        ["fabric_loop.py", "fsdp"],
        ["lightning"],
        8,
        FSDP1,
        by_unit(regression(), ["1", "2"], fsdp1_original),
        regression(),
        2,
    ),
    "Fabric fsdp2": Training(
        ["fabric_loop.py", "model_parallel"],
        ["lightning"],
        8,
        FSDP2,
        by_unit(regression(), ["1", "2"], fsdp2),
        regression(),
        2,
    ),
    "Lightning fsdp1": Training(
        ["lightning_trainer.py", "fsdp"],
        ["lightning"],
        8,
        FSDP1,
        by_unit(regression("net."), ["net.1", "net.2"], fsdp1_original),
        regression(),
    ),
    # The Trainer leaves the LightningModule as it is: what trains is the network that its training_step calls.
    "Lightning fsdp2": Training(
        ["lightning_trainer.py", "model_parallel"],
        ["lightning"],
        8,
        FSDP2,
        by_unit(regression(), ["1", "2"], fsdp2),
        regression(),
    ),
}

# Running


def missing(names: Sequence[str]) -> str:
    """Which of these packages are not installed."""
    found = {distribution.name.lower() for distribution in importlib.metadata.distributions()}
    return ", ".join(name for name in names if name not in found)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """The installed program where the scripts are, and what makes frameworks run on a CPU and stay off the network."""
    folder = tmp_path_factory.mktemp("frameworks")
    made = program_in(folder)
    environment = {
        **made.environment,
        "PYTHONPATH": ":".join(filter(None, [str(HERE / "lifted"), made.environment.get("PYTHONPATH")])),
        "ACCELERATE_TORCH_DEVICE": "cpu",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / "hub"),
    }
    return replace(made, environment=environment, directory=HERE)


def run_both(program: Program, words: Sequence[str], folder: Path) -> tuple[Ended, dict[str, Any], Ended]:
    alone = run_alone(words, folder / "alone", directory=HERE, environment=program.environment)
    assert alone.codes == [0, 0], alone.logs
    return alone, *run_watched(program, words)


def check(document: dict[str, Any], training: Training) -> None:
    """State, strategy, units and bytes are the training's."""
    assert (document["run"]["state"], document["run"]["steps"]) == ("finished", training.steps)
    assert document["strategy"]["effective"] == training.effective
    assert {unit["name"]: unit["shard_bytes"] for unit in document["units"]} == dict(training.units)
    assert document["model"]["params"] == sum(prod(shape) for shape in training.params.values())
    for rank in document["ranks"]:
        assert rank["memory"]["param_shard"] == sum(training.units.values())
        assert (rank["steps"], rank["dropped"]) == (training.steps, 0)
    if training.backwards > 1:
        assert document["strategy"]["detail"]["loss"] == f"sum of {training.backwards} backwards"


def marks_of(training: Training) -> list[pytest.MarkDecorator]:
    return [pytest.mark.xfail(reason=training.broken, strict=True)] if training.broken else []


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks_of(one)) for name, one in TRAININGS.items()])
def test_a_framework_trains_as_without_us_and_is_seen(name: str, program: Program, tmp_path: Path) -> None:
    """Losses to the last bit; and the strategy, units, bytes, steps and losses of what it trains."""
    training = TRAININGS[name]
    if absent := missing(training.needs):
        pytest.skip(f"not installed: {absent} (pip install 'fsdp-tui[frameworks]')")
    alone, document, ours = run_both(program, training.words, tmp_path)
    assert ours.losses == alone.losses
    assert list(alone.losses) == list(range(1, training.steps + 1)), "the script itself"
    check(document, training)
    assert document["loss"]["steps"] == list(alone.losses)
    assert document["loss"]["values"] == pytest.approx(list(alone.losses.values()), rel=1e-6)


TITAN = Training(
    ["-m", "torchtitan.train", "--job.config_file"],
    ["torchtitan", "triton", "tokenizers", "datasets"],
    6,
    FSDP2,
    joined(
        by_unit(titan(), ["tok_embeddings", *(f"layers.{at}" for at in range(6)), "norm", "output"], fsdp2),
        "norm",
        "output",
    ),
    titan(),
)


def test_torchtitan_trains_as_without_us_and_is_seen(program: Program, tmp_path: Path) -> None:
    """Its debug model, as its own program runs it: two optimizers in one, which step in each iteration."""
    if absent := missing(TITAN.needs):
        pytest.skip(f"not installed: {absent}")
    if not importlib.metadata.version("torchtitan").startswith("0.2."):
        pytest.skip(f"torchtitan {importlib.metadata.version('torchtitan')}: this is how 0.2 is configured")
    folder = tmp_path / "titan"
    subprocess.run([sys.executable, str(HERE / "torchtitan_assets.py"), str(folder)], check=True, capture_output=True)
    words = [*TITAN.words, str(folder / "debug.toml")]
    alone, document, ours = run_both(program, words, tmp_path)
    said = [re.findall(rb"step: +(\d+) +loss: +([\d.]+) +grad_norm: +([\d.]+)", run.logs[0]) for run in (alone, ours)]
    assert said[0] == said[1]
    assert [int(step) for step, _, _ in said[0]] == document["loss"]["steps"] == list(range(1, TITAN.steps + 1))
    check(document, TITAN)
    # It divides each rank's sum by the tokens of all ranks, and reports the sum over ranks.
    printed = [float(loss) for _, loss, _ in said[0]]
    assert [2 * loss for loss in document["loss"]["values"]] == pytest.approx(printed, abs=1e-5)
