"""Messages as ranks send them, short to write in a test."""

from __future__ import annotations

from typing import Any

from fsdp_tui.telemetry.messages import CATEGORIES, PHASES, Capture, Comm, Hello, Launched, Part, Step, Structure, Unit


def launched(
    nproc: int = 2, strategy: str = "fsdp2:full_shard", **options: str | int | float | bool | None
) -> Launched:
    return Launched(
        run_id="20260101-000000-abcd",
        name="a",
        created_ns=1_000,
        command=["fsdp-tui", "demo"],
        nproc=nproc,
        strategy=strategy,
        options=options,
        steps=20,
    )


def hello(rank: int, world_size: int = 2, incarnation: int = 1, backend: str = "gloo") -> Hello:
    return Hello(
        rank=rank,
        world_size=world_size,
        incarnation=incarnation,
        host="host",
        pid=100 + rank,
        pid_started=1.0,
        device="cpu",
        device_name="a cpu",
        capacity_bytes=2**34,
        backend=backend,
        versions={"torch": "2.13.0"},
    )


def structure(
    rank: int,
    *,
    effective: str = "fsdp2:full_shard",
    units: tuple[Unit, ...] = (Unit("<root>", 100, 200, 400), Unit("blocks.0", 50, 100, 200)),
    groups: tuple[tuple[int, ...], ...] = ((0, 1),),
    buckets: tuple[int, ...] = (),
    ideal: int | None = 1_200,
    detail: dict[str, str | int | float | bool | None] | None = None,
    **facts: Any,
) -> Structure:
    return Structure(
        rank=rank,
        effective=effective,
        detail=detail or {},
        units=list(units),
        groups=[list(group) for group in groups],
        buckets=list(buckets),
        params=150,
        trainable_params=150,
        param_bytes=600,
        ideal_state_bytes=ideal,
        probes={"ledger": "ok"},
        **facts,
    )


def column(**nbytes: int | None) -> list[int | None]:
    """A memory column; categories that are not named hold 0 bytes, cache and others are not known."""
    values: list[int | None] = [nbytes.get(name, None if name in ("cache", "others") else 0) for name in CATEGORIES]
    return [*values, sum(value or 0 for value in values[:10])]


def step(
    rank: int,
    number: int,
    *,
    loss: float | None = 2.0,
    step_ns: int = 100,
    tokens: int | None = 1_000,
    memory: list[int | None] | None = None,
    peak: list[int | None] | None = None,
    phases: tuple[int | None, ...] = (None, 40, 50, 5, 5),
) -> Step:
    memory = memory or column(param_shard=300, grad_shard=300, optimizer=600)
    return Step(
        rank=rank,
        seq=number,
        step=number,
        ended_ns=1_000 * number,
        step_ns=step_ns,
        phases_ns=list(phases),
        loss=loss,
        tokens=tokens,
        memory=memory,
        peak=peak or memory,
        peak_phase="backward",
        peak_unit=1,
        dropped=0,
        overhead_ns=3,
    )


def comm(
    rank: int, number: int, durations: tuple[int, ...] = (10, 20, 30), exposed: tuple[int, ...] | None = None
) -> Comm:
    """All-gather of both units in forward, reduce-scatter of blocks.0 in backward."""
    return Comm(
        rank=rank,
        seq=number,
        step=number,
        unit=[0, 1, 1],
        kind=[0, 0, 1],
        phase=[0, 0, 1],
        group=[0, 0, 0],
        nbytes=[400, 200, 200],
        duration_ns=list(durations),
        exposed_ns=list(exposed if exposed is not None else durations),
    )


def capture(rank: int = 0, number: int = 7, *, id: str = "one", error: str = "") -> Capture:
    """1,000 bytes of parameters; 300 of blocks.0 are gathered, 200 saved, 100 temporary that become a gradient; then all go."""
    rows = [
        (10, 300, "param_unsharded", 1, "forward"),
        (20, 200, "activation", 2, "forward"),
        (30, 100, "temp", 2, "backward"),
        (40, -200, "activation", 2, "backward"),
        (50, -100, "temp", 2, "backward"),
        (50, 100, "grad_unsharded", 2, "backward"),
        (60, -300, "param_unsharded", 1, "backward"),
    ]
    return Capture(
        rank=rank,
        step=number,
        id=id,
        began_ns=1_000_000 + rank,
        step_ns=100,
        error=error,
        modules=["", "blocks.0", "blocks.0.up"],
        base=column(param_shard=1_000),
        at_ns=[row[0] for row in rows],
        delta_bytes=[row[1] for row in rows],
        category=[CATEGORIES.index(row[2]) for row in rows],
        module=[row[3] for row in rows],
        phase=[PHASES.index(row[4]) for row in rows],
        events=len(rows),
        peak=column(param_shard=1_000, param_unsharded=300, activation=200, temp=100),
        peak_at_ns=30,
        peak_phase="backward",
        peak_module="blocks.0.up",
        peak_parts=[
            Part("param_shard", "blocks.0", 1_000, 1),
            Part("param_unsharded", "blocks.0", 300, 1),
            Part("activation", "blocks.0.up", 200, 1),
            Part("temp", "blocks.0", 100, 1, "grad_unsharded"),
        ],
        saved_bytes=200,
        op_names=["aten.mm.default"],
        op=[0, 0, 0],
        op_at_ns=[12, 28, 32],
        op_ns=[8, 2, 8],
        op_module=[2, 2, 2],
        op_phase=[PHASES.index(phase) for phase in ("forward", "backward", "backward")],
        ops=3,
        span_module=[2],
        span_at_ns=[11],
        span_ns=[9],
        call_kind=[0, 0],
        call_module=[1, 1],
        call_nbytes=[300, 300],
        call_at_ns=[5, 8],
        call_ns=[4, -1],
        limits=["something is not seen"],
    )


def bucket_comm(
    rank: int, number: int, sizes: tuple[int, ...] = (700, 300), reductions: tuple[int, int] = (-1, -1)
) -> Comm:
    """DDP's buckets, reduced in backward."""
    count = len(sizes)
    return Comm(
        rank=rank,
        seq=number,
        step=number,
        unit=[-2 - at for at in range(count)],
        kind=[2] * count,
        phase=[1] * count,
        group=[0] * count,
        nbytes=list(sizes),
        duration_ns=[-1] * count,
        exposed_ns=[-1] * count,
        reductions_ns=reductions[0],
        reductions_exposed_ns=reductions[1],
    )


def hybrid_comm(rank: int, number: int, gather: int, reduce: int) -> Comm:
    """The root's all-gather in the rank's first group, and its all-reduce in the second."""
    times = [gather, reduce]
    return Comm(rank, number, number, [0, 0], [0, 2], [0, 1], [0, 1], [400, 200], times, list(times))
