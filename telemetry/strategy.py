"""The words for sharding strategies, their text form, and which of them a machine can run. No torch here.

The text form is what people type and what every record holds: `single`, `ddp`, `fsdp2:full_shard`,
`fsdp1:shard_grad_op`, `fsdp2:reshard=2`, `fsdp1:hybrid_shard=2x2` (replicate x shard).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

APIS = ("single", "ddp", "fsdp1", "fsdp2")
SHARDINGS = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")
HYBRID = frozenset({"hybrid_shard", "hybrid_shard_zero2"})
DTYPES = ("fp32", "bf16", "fp16")
DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
DEFAULT = "fsdp2:full_shard"
SWEEP = (
    "single",
    "ddp",
    "fsdp1:full_shard",
    "fsdp1:shard_grad_op",
    "fsdp1:no_shard",
    "fsdp2:full_shard",
    "fsdp2:shard_grad_op",
)
"""What `sweep` runs when it is not told."""
FORMS = (
    "single, ddp, fsdp1:S or fsdp2:S with S one of full_shard, shard_grad_op, no_shard, hybrid_shard[=RxS],"
    " hybrid_shard_zero2[=RxS], or fsdp2:reshard=N"
)


class StrategyError(ValueError):
    """The text is no strategy; the message says what was expected and what was found."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to place a model's states on ranks.

    `sharding` is PyTorch's ShardingStrategy name in lower case, for FSDP2 too, or "reshard" (FSDP2 only: after forward
    keep 1/`reshard_to` instead of 1/N). `replicate` x `shard` is the mesh of a hybrid strategy; None: chosen at launch.
    """

    api: str
    sharding: str | None = None
    reshard_to: int | None = None
    replicate: int | None = None
    shard: int | None = None

    @property
    def text(self) -> str:
        if self.sharding is None:
            return self.api
        if self.sharding == "reshard":
            return f"{self.api}:reshard={self.reshard_to}"
        mesh = f"={self.replicate}x{self.shard}" if self.replicate is not None else ""
        return f"{self.api}:{self.sharding}{mesh}"

    @property
    def is_fsdp(self) -> bool:
        return self.api in ("fsdp1", "fsdp2")

    def shard_group_size(self, world_size: int) -> int:
        """Ranks that share one copy of the sharded states."""
        if not self.is_fsdp or self.sharding == "no_shard":
            return 1
        if self.sharding in HYBRID:
            return self.shard if self.shard is not None else max(1, world_size // 2)
        return world_size

    def with_mesh(self, world_size: int) -> Strategy:
        """The same strategy with a hybrid mesh filled in: two replicas unless it says otherwise."""
        if self.sharding in HYBRID and self.replicate is None and world_size % 2 == 0 and world_size >= 2:
            return Strategy(self.api, self.sharding, None, 2, world_size // 2)
        return self


def parse_strategy(text: str) -> Strategy:
    """Reads the text form.

    Raises:
        StrategyError: with the forms that exist and the text that was found.
    """
    word = text.strip().lower()
    if word in ("single", "ddp"):
        return Strategy(word)
    match = re.fullmatch(r"(fsdp1|fsdp2):([a-z_0-9]+)(?:=(\d+)(?:x(\d+))?)?", word)
    if match:
        api, sharding, first, second = match.groups()
        if sharding in HYBRID and first and second and int(first) >= 1 and int(second) >= 1:
            return Strategy(api, sharding, None, int(first), int(second))
        if sharding in SHARDINGS and first is None:
            return Strategy(api, sharding)
        if sharding == "reshard" and api == "fsdp2" and first and second is None and int(first) >= 1:
            return Strategy(api, "reshard", int(first))
    raise StrategyError(f"unknown strategy {text!r}: expected {FORMS}")


def parse_strategies(text: str) -> list[Strategy]:
    """Reads a comma-separated list of strategies, in order, each once.

    Raises:
        StrategyError: one of them is unknown, or there is none.
    """
    found = dict.fromkeys(parse_strategy(part) for part in text.split(",") if part.strip())
    if not found:
        raise StrategyError(f"no strategy in {text!r}: expected {FORMS}")
    return list(found)


def parse_wrap(text: str) -> tuple[str, int | tuple[str, ...] | None]:
    """Reads a wrap policy: none | transformer | size:<min_params> | modules:<Class,Class>.

    Returns the kind, and its number (size) or class names (modules).

    Raises:
        StrategyError: it is none of these.
    """
    kind, _, rest = text.strip().partition(":")
    if kind in ("none", "transformer") and not rest:
        return kind, None
    if kind == "size" and re.fullmatch(r"[\d_]+", rest) and int(rest) > 0:
        return kind, int(rest)
    names = tuple(name.strip() for name in rest.split(",") if name.strip())
    if kind == "modules" and names and all(name.isidentifier() for name in names):
        return kind, names
    raise StrategyError(
        f"unknown wrap policy {text!r}: expected none, transformer, size:MIN_PARAMS or modules:CLASS,CLASS"
    )


def misfits(
    strategy: Strategy,
    *,
    world_size: int,
    accelerator: bool,
    torch_version: tuple[int, int] | None,
    cpu_offload: bool = False,
    precision: str = "fp32",
    prefetch: int = 0,
    compiled: bool = False,
    wrap: str = "transformer",
) -> Iterator[str]:
    """Why this strategy cannot run here, one sentence each; nothing when it can.

    `torch_version` is (major, minor), None when no torch was found. What PyTorch itself refuses or silently gets wrong is
    refused here, before anything is launched.
    """
    name = strategy.text
    if strategy.api == "single" and world_size != 1:
        yield f"single trains in one process, and {world_size} ranks were asked for: use --nproc 1, or ddp"
    if strategy.sharding in HYBRID:
        if strategy.replicate is None and (world_size < 4 or world_size % 2):
            yield f"{name} on {world_size} ranks needs its mesh, for example {name}={world_size}x1 (replicate x shard)"
        if (
            strategy.replicate is not None
            and strategy.shard is not None
            and strategy.replicate * strategy.shard != world_size
        ):
            yield f"{name} is a mesh of {strategy.replicate * strategy.shard} ranks, and there are {world_size}"
    if strategy.sharding == "reshard" and strategy.reshard_to is not None:
        if world_size % strategy.reshard_to or strategy.reshard_to > world_size:
            yield f"{name}: {strategy.reshard_to} must divide the {world_size} ranks"
        elif strategy.reshard_to in (1, world_size) and world_size > 1:
            same = "fsdp2:shard_grad_op" if strategy.reshard_to == 1 else "fsdp2:full_shard"
            yield f"{name} on {world_size} ranks is {same}: ask for that"
    if torch_version is not None and strategy.api == "fsdp2" and not accelerator and torch_version < (2, 7):
        yield f"FSDP2 runs on a CPU from torch 2.7 on, and this is torch {torch_version[0]}.{torch_version[1]}: use fsdp1"
    if cpu_offload:
        if not strategy.is_fsdp:
            yield f"--cpu-offload is FSDP's, and the strategy is {name}"
        elif strategy.api == "fsdp1" and not accelerator:
            yield "fsdp1 with --cpu-offload needs an accelerator, and there is none: use fsdp2, or leave it out"
    if prefetch and not strategy.is_fsdp:
        yield f"--prefetch is FSDP's, and the strategy is {name}"
    if prefetch > 1 and strategy.api == "fsdp1":
        yield "fsdp1 prefetches one unit at most: use --prefetch 1, or fsdp2"
    if compiled and strategy.api != "fsdp2":
        yield f"--compile works with fsdp2 here, and the strategy is {name}"
    if precision != "fp32" and not strategy.is_fsdp:
        yield f"--precision {precision} is FSDP's mixed precision, and the strategy is {name}: use fp32"
    if wrap != "transformer" and not strategy.is_fsdp:
        yield f"--wrap is FSDP's, and the strategy is {name}"
