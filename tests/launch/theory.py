"""What a rank holds of parameters, from their shapes and PyTorch's two rules of sharding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import ceil, prod

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]
Rule = Callable[[Iterable[Shape]], int]


def whole(shapes: Iterable[Shape]) -> int:
    """Bytes of all of them, in fp32."""
    return 4 * sum(prod(shape) for shape in shapes)


def fsdp2(shapes: Iterable[Shape], ranks: int = 2) -> int:
    """Each parameter's first dimension is padded to a multiple of the ranks."""
    return 4 * sum(ceil(rows / ranks) * prod(rest) for rows, *rest in shapes)


def fsdp1(shapes: Iterable[Shape], ranks: int = 2, *, original: bool = False) -> int:
    """All are one flat parameter that is padded; with use_orig_params each begins at a multiple of 16 bytes."""
    numel = 0
    for shape in shapes:
        if original:
            numel = 4 * ceil(numel / 4)
        numel += prod(shape)
    return 4 * ceil(numel / ranks)


fsdp1_original: Rule = partial(fsdp1, original=True)


def adam(shapes: Iterable[Shape], rank: int, ranks: int = 2) -> int:
    """Two of each shard without padding, and a step count of 4 bytes, in this rank's memory."""
    nbytes = 0
    for rows, *rest in shapes:
        chunk = ceil(rows / ranks)
        nbytes += 4 + 4 * 2 * max(0, min(chunk, rows - rank * chunk)) * prod(rest)
    return nbytes


def by_unit(shapes: Shapes, wrapped: Sequence[str], rule: Rule) -> dict[str, int]:
    """Shard bytes of each wrapped module, and of what the root has beside them; a parameter is of the innermost one."""
    units: dict[str, list[Shape]] = {}
    for name, shape in shapes.items():
        around = [module for module in wrapped if name.startswith(f"{module}.")]
        units.setdefault(max(around, key=len, default="<root>"), []).append(shape)
    return {name: rule(held) for name, held in units.items()}
