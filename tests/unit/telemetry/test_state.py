"""The reducer: expected numbers are worked out by hand from the messages."""

from __future__ import annotations

import dataclasses
import math
import random

import msgspec
import numpy as np
import pytest

from fsdp_tui.telemetry.bandwidth import bus_factor
from fsdp_tui.telemetry.messages import Beat, Ended, Gauge, Goodbye, Message, Unit, decode, encode
from fsdp_tui.telemetry.state import COMM_WINDOW, RunState
from fsdp_tui.telemetry.view import adds_up, as_dict, model_states, total

from .messages_for_tests import bucket_comm, column, comm, hello, hybrid_comm, launched, step, structure


def running(steps: int = 5, world_size: int = 2) -> RunState:
    state = RunState()
    state.apply(launched(world_size))
    for rank in range(world_size):
        state.apply(hello(rank, world_size))
        state.apply(structure(rank, groups=(tuple(range(world_size)),)))
    for number in range(1, steps + 1):
        for rank in range(world_size):
            state.apply(step(rank, number, loss=2.0 / number + rank, step_ns=100 * number + rank))
            state.apply(comm(rank, number))
    return state


def test_loss_is_the_mean_over_ranks() -> None:
    """Each step's loss is the mean of what the ranks reported."""
    assert running(3).view().series.loss.tolist() == pytest.approx([2.5, 1.5, 2 / 3 + 0.5])


def test_step_time_is_the_slowest_ranks_and_the_first_is_apart() -> None:
    """Medians leave the first step out; it is reported alone."""
    view = running(4).view()
    assert (view.step_first_ns, view.step_median_ns) == (101, 301)


def test_tokens_per_s_adds_the_ranks() -> None:
    """2 x 1000 tokens in the slowest rank's 201, 301, 401 ns: the median is 2000/301 ns."""
    assert running(4).view().tokens_per_s == pytest.approx(2_000 / 301e-9)


def test_a_step_that_one_rank_has_not_reported_has_no_rate() -> None:
    """A half-reported step would show half the tokens."""
    state = running(3)
    state.apply(step(0, 4))
    view = state.view()
    assert math.isnan(view.series.tokens_per_s[-1])
    assert view.steps == 3


def test_unknown_loss_stays_unknown() -> None:
    """No rank knows the loss: NaN in the series, never 0."""
    state = RunState()
    state.apply(step(0, 1, loss=None))
    assert math.isnan(state.view().series.loss[0])


def test_late_steps_find_their_place() -> None:
    """Ranks report out of order; the series stays sorted."""
    state = RunState()
    state.apply(hello(0))
    for number in (3, 1, 2):
        state.apply(step(0, number, loss=float(number)))
    series = state.view().series
    assert (series.steps.tolist(), series.loss.tolist()) == ([1, 2, 3], [1.0, 2.0, 3.0])


def test_collectives_per_unit() -> None:
    """Calls, bytes and time per unit and phase, from the columns."""
    root, block = running().view().units
    assert (root.all_gather.step.per_step, root.all_gather.step.bytes, root.all_gather.step.median_ns) == (1, 400, 10)
    assert (block.all_gather.forward.median_ns, block.all_gather.backward.per_step) == (20, 0)
    assert (block.reduce_scatter.backward.bytes, block.reduce_scatter.backward.median_ns) == (200, 30)
    assert (block.all_reduce.step.per_step, block.all_reduce.step.median_ns) == (0, None)


def test_communication_adds_up_over_units() -> None:
    """Totals per step and rank."""
    totals = running().view().comm
    assert (totals.all_gather_bytes, totals.reduce_scatter_bytes, totals.all_reduce_bytes) == (600, 200, 0)
    assert (totals.exposed_ns, totals.exposed_all_gather_ns, totals.exposed_reduce_ns) == (60, 30, 30)


def test_bandwidths() -> None:
    """400 B in 10 ns are 40 GB/s, of which 2 ranks carry half on each link; 200 B reduced and scattered in 30 ns likewise."""
    root, block = running().view().units
    gather, reduce = root.all_gather.step, block.reduce_scatter.step
    assert (gather.algbw_bytes_per_s, gather.busbw_bytes_per_s) == pytest.approx((40e9, 20e9))
    assert (reduce.algbw_bytes_per_s, reduce.busbw_bytes_per_s) == pytest.approx((200 / 30e-9, 100 / 30e-9))
    assert root.all_reduce.step.algbw_bytes_per_s is None


@pytest.mark.parametrize(
    ("kind", "ranks", "factor"), [(0, 4, 0.75), (1, 8, 0.875), (2, 2, 1.0), (2, 4, 1.5), (0, 1, 0.0)]
)
def test_what_a_link_carries(kind: int, ranks: int, factor: float) -> None:
    """(n-1)/n of an all-gather and a reduce-scatter, twice that of an all-reduce: nccl-tests, doc/PERFORMANCE.md."""
    assert bus_factor(kind, ranks) == factor


def test_a_group_that_is_not_known_has_no_bus_bandwidth() -> None:
    """The bytes per second of the algorithm are known all the same."""
    state = RunState()
    for rank in range(2):
        state.apply(hello(rank))
        state.apply(structure(rank, groups=()))
        for number in (1, 2):
            state.apply(step(rank, number))
    for rank in range(2):
        state.apply(comm(rank, 2))
    stats = state.view().units[0].all_gather.step
    assert stats.algbw_bytes_per_s == pytest.approx(40e9)
    assert stats.busbw_bytes_per_s is None


def test_exposed_and_overlapped_are_the_duration() -> None:
    """10, 20, 30 ns of which compute waited 4, 0 and 30."""
    state = running(1)
    for number in (2, 3):
        for rank in range(2):
            state.apply(comm(rank, number, exposed=(4, 0, 30)))
    view = state.view()
    root, block = view.units
    times = [
        (one.duration_ns, one.exposed_ns, one.overlapped_ns) for one in (root.all_gather.step, block.all_gather.step)
    ]
    assert times == [(10, 4, 6), (20, 0, 20)]
    assert view.exposed_ns == view.ranks[0].exposed_ns == (4, 30, 0)


def test_ddp_s_buckets_are_timed_together() -> None:
    """Single buckets have no time. Rank 1 waits 50 ns less at the end of backward: rank 0 waits for it."""
    state = RunState()
    for rank in range(2):
        state.apply(hello(rank))
        state.apply(structure(rank, effective="ddp", units=(), buckets=(700, 300)))
        state.apply(step(rank, 1))
    for number in (2, 3):
        for rank, exposed in enumerate((60, 10)):
            state.apply(bucket_comm(rank, number, reductions=(90, exposed)))
    view = state.view()
    assert view.buckets[0].all_reduce.step.median_ns is None
    assert (view.comm.all_reduce_bytes, view.comm.buckets_ns, view.comm.buckets_exposed_ns) == (1_000, 90, 35)
    assert (view.comm.exposed_ns, view.comm.duration_ns) == (35, 90)
    assert [rank.exposed_ns for rank in view.ranks] == [(0, 60, 0), (0, 10, 0)]
    assert view.lateness is not None
    assert (view.lateness.rank, view.lateness.ns, view.lateness.unit) == (1, 50, "buckets")


def test_lateness_begins_where_the_first_large_part_is() -> None:
    """Rank 1 is 1 ns late at the root, 20 at the gather of blocks.0 and 10 at its reduction: 31, from the gather on."""
    state = running(1)
    for number in range(2, 6):
        state.apply(comm(0, number, (11, 40, 30)))
        state.apply(comm(1, number, (10, 20, 20)))
    late = state.view().lateness
    assert late is not None
    assert (late.rank, late.ns, late.steady_ns, late.steps) == (1, 31, 31, 4)
    assert (late.unit, late.kind, late.phase, late.start_ns) == ("blocks.0", "all_gather", "forward", 20)


def test_a_delay_counts_once_in_a_hybrid_strategy() -> None:
    """Rank 3 of 2 x 2 is 30 ns late at its shard group's gather, and so at its replicas' all-reduce, where rank 2 is too."""
    state = RunState()
    for rank in range(4):
        shards, replicas = ((0, 1) if rank < 2 else (2, 3)), ((0, 2) if rank % 2 == 0 else (1, 3))
        state.apply(hello(rank, 4))
        state.apply(structure(rank, groups=(shards, replicas)))
        state.apply(step(rank, 1))
    for number in range(2, 6):
        for rank, (gather, reduce) in enumerate(((10, 40), (10, 40), (40, 10), (10, 10))):
            state.apply(hybrid_comm(rank, number, gather, reduce))
    late = state.view().lateness
    assert late is not None
    assert (late.rank, late.ns, late.unit, late.kind) == (3, 30, "<root>", "all_gather")


def test_ranks_that_are_late_in_turn_are_not_late() -> None:
    """30 ns each in every second step: the difference is 0 in the middle, and far below it in a part of the steps."""
    state = running(1)
    for number in range(2, 22):
        for rank in range(2):
            state.apply(comm(rank, number, (10, 10 if number % 2 == rank else 40, 30)))
    late = state.view().lateness
    assert late is not None
    assert (abs(late.ns), late.steady_ns) == (0, -30)


def test_lateness_is_the_longest_duration_minus_the_own() -> None:
    """Rank 1 spends 5 ns less in the gather of blocks.0: the other waited 5 ns for it."""
    state = running(1)
    for number in range(2, 5):
        state.apply(comm(0, number, (10, 20, 30)))
        state.apply(comm(1, number, (10, 15, 30)))
    root, block = state.view().units
    assert dict(block.all_gather.step.late_ns) == {0: 0, 1: 5}
    assert dict(root.all_gather.step.late_ns) == {0: 0, 1: 0}


def test_lateness_stays_inside_a_group() -> None:
    """In a 2 x 2 mesh a rank is compared with its shard group only."""
    state = RunState()
    for rank in range(4):
        state.apply(hello(rank, 4))
        state.apply(structure(rank, groups=((0, 1) if rank < 2 else (2, 3),)))
        state.apply(step(rank, 1))
    for number in (2, 3):
        for rank, duration in enumerate((10, 10, 1_000, 900)):
            state.apply(comm(rank, number, (duration, 20, 30)))
    assert dict(state.view().units[0].all_gather.step.late_ns) == {0: 0, 1: 0, 2: 0, 3: 100}


def test_waiting_that_was_not_measured_is_not_known() -> None:
    """-1 on the wire is None, not a negative time and not 0."""
    state = running(1)
    for number in (2, 3):
        for rank in range(2):
            state.apply(comm(rank, number, exposed=(-1, 20, 30)))
    root, block = state.view().units
    assert (root.all_gather.step.exposed_ns, block.all_gather.step.exposed_ns) == (None, 20)


def test_a_rank_that_stays_silent_does_not_hold_the_others_up() -> None:
    """Collectives of a step are closed without a rank that is far behind."""
    state = running(1)
    for number in range(2, 40):
        state.apply(comm(0, number))
    assert state.view().units[0].all_gather.step.median_ns == 10
    assert len(state.comm_open) <= 17


def test_windows_are_bounded() -> None:
    """Memory does not grow with the steps, but for the series."""
    state = running(2_000)
    assert len(state.comm_window) == COMM_WINDOW
    assert all(len(rank.window) <= 1_024 for rank in state.ranks.values())
    assert len(state.view().series.steps) == 2_000


def test_states_of_a_run() -> None:
    """starting, running, paused, running, then what `Ended` says."""
    state = RunState()
    state.apply(launched())
    assert state.state == "starting"
    for rank in range(2):
        state.apply(hello(rank))
        state.apply(step(rank, 1))
    assert state.state == "running"
    for paused, expected in ((True, "paused"), (False, "running")):
        for rank in range(2):
            state.apply(Beat(rank, 1, 1, 1, 1, 0, paused))
        assert state.state == expected
    state.apply(Ended(state="stopped", ended_ns=9, exit_codes={"0": 0, "1": 0}, stop_rung="agreed"))
    assert state.state == "stopped"


def test_a_new_incarnation_keeps_the_count_of_dropped_messages() -> None:
    """What the old process dropped is not forgotten."""
    state = RunState()
    state.apply(hello(0))
    state.apply(Beat(0, 1, 1, 1, 10, 7))
    state.apply(Goodbye(rank=0, incarnation=1, reason="error", steps=1))
    state.apply(hello(0, incarnation=2))
    state.apply(Beat(0, 2, 1, 1, 10, 2))
    rank = state.view().ranks[0]
    assert (rank.dropped, rank.goodbye) == (9, "")


def test_snapshot_continues_like_the_original() -> None:
    """A late joiner that loads a snapshot sees what one sees who was there from the start."""
    first, later = running(5), RunState.load(running(5).dump())
    for state in (first, later):
        for rank in range(2):
            state.apply(step(rank, 6))
            state.apply(comm(rank, 6))
    assert later.dump() == first.dump()
    assert later.view().units == first.view().units


def test_messages_survive_the_wire() -> None:
    """Encoding and decoding is the identity for each kind."""
    sent: list[Message] = [launched(), hello(0), structure(0), step(0, 1), comm(0, 1)]
    assert [decode(encode(message)) for message in sent] == sent


@pytest.mark.parametrize(
    "odd",
    [
        comm(0, 1).__class__(0, 1, 1, [0], [0, 0], [0], [0], [0], [0], [0]),
        comm(0, 1).__class__(0, 1, 1, [0], [9], [0], [0], [0], [0], [0]),
    ],
)
def test_odd_messages_are_counted(odd: Message) -> None:
    """A message that makes no sense is a bad record, never an exception."""
    state = running(2)
    state.apply(odd)
    assert state.bad_records == 1
    assert state.view().bad_records == 1


def test_damaged_snapshot_is_a_value_error() -> None:
    """The caller can tell a damaged snapshot from a bug."""
    with pytest.raises(ValueError, match="not a snapshot"):
        RunState.load(b"\xc1 nonsense")


def test_columns_add_up() -> None:
    """The helper that guards the ledger's promise."""
    good = tuple(column(param_shard=3, grad_shard=4, optimizer=5, activation=6))
    assert (adds_up(good), total(good), model_states(good)) == (True, 18, 12)
    assert not adds_up((*good[:-1], 19))


def test_empty_run_has_a_picture() -> None:
    """Before the first message there is nothing to know, and that is shown."""
    view = RunState().view()
    assert (view.state, view.ranks, view.steps, view.tokens_per_s) == ("starting", (), 0, None)


def test_units_show_the_largest_shard() -> None:
    """Uneven shards: the fullest rank's bytes."""
    state = RunState()
    state.apply(hello(0))
    state.apply(structure(0, units=(Unit("<root>", 3, 8, 16),)))
    state.apply(structure(1, units=(Unit("<root>", 3, 4, 16),)))
    assert state.view().units[0].shard_bytes == 8


def test_a_gpu_s_memory_is_the_step_s_and_the_newest_reading_s() -> None:
    """Allocated 1,200 + cache 300 + non_torch 100 + others 50: what NVML says is used. Unknown stays unknown."""
    state = running(2)
    cuda = column(param_shard=300, grad_shard=300, optimizer=600, cache=300, non_torch=None)
    for number in (3, 4):
        state.apply(step(0, number, memory=cuda))
    assert as_dict(state.view().ranks[0].memory)["non_torch"] is None
    state.apply(Gauge(0, 1, {"non_torch_bytes": 90, "nvml_others_bytes": None}, {"nvml_others_bytes": "why"}))
    state.apply(Gauge(0, 2, {"non_torch_bytes": 100, "nvml_others_bytes": 50}, {}, ["power cap"], [(7, 50)]))
    rank = state.view().ranks[0]
    memory = as_dict(rank.memory)
    assert [memory[name] for name in ("total", "cache", "non_torch", "others")] == [1_200, 300, 100, 50]
    assert as_dict(rank.peak)["others"] == 50
    assert (rank.throttle, rank.other_processes) == (("power cap",), ((7, 50),))
    state.apply(Gauge(0, 3, {"non_torch_bytes": None, "nvml_others_bytes": None}, {"non_torch_bytes": "GPU is lost"}))
    assert as_dict(state.view().ranks[0].memory)["others"] is None
    assert state.view().ranks[0].throttle is None


def test_what_a_rank_measured_itself_stays() -> None:
    """A CPU's non_torch is its heap; and a rank that started again has no readings yet."""
    state = running(2)
    state.apply(step(0, 3, memory=column(param_shard=300, non_torch=7)))
    state.apply(Gauge(0, 1, {"non_torch_bytes": 100}))
    assert as_dict(state.view().ranks[0].memory)["non_torch"] == 7
    state.apply(hello(0, incarnation=2))
    assert state.view().ranks[0].gauges == {}


def test_an_older_gauge_is_read() -> None:
    """The recording of an earlier version has no throttle reasons."""
    old = msgspec.msgpack.encode(["g", 0, 1, {"rss_bytes": 5}, {}])
    assert decode(old) == Gauge(0, 1, {"rss_bytes": 5})


def test_series_that_grow_are_those_that_are_made_at_once() -> None:
    """Whether steps come in their order, late, again, or from ranks that are only now known of."""
    chance, state = random.Random(1), RunState()
    state.apply(hello(0, 3))
    for number in range(1, 200):
        for rank in range(3 if number > 50 else 2):
            late = number - chance.choice((0, 0, 0, 1, 7, 40))
            state.apply(
                step(rank, max(1, late), loss=chance.choice((None, chance.random())), step_ns=chance.randrange(9))
            )
        if number == 100:
            state.apply(hello(0, 2))
        if chance.random() < 0.5:
            grown, whole = state.view().series, RunState.load(state.dump()).view().series
            for field in dataclasses.fields(whole):
                np.testing.assert_array_equal(getattr(grown, field.name), getattr(whole, field.name))
    assert state.view().series is state.view().series


@pytest.mark.parametrize(
    ("state", "reason", "said"),
    [
        ("failed", "rank 1 was killed by SIGKILL", "failed: rank 1 was killed by SIGKILL"),
        ("lost", "", "lost"),
        ("finished", "", None),
        ("stopped", "", None),
    ],
)
def test_a_bad_end_is_an_event(state: str, reason: str, said: str | None) -> None:
    """Of the picture only: there may be a later word on the end, and the recording has that."""
    run = running()
    run.apply(Ended(state=state, ended_ns=900, exit_codes={"1": -9}, failed_rank=1 if said else None, reason=reason))
    assert [(event.text, event.severity, event.rank, event.at_ns) for event in run.view().events] == (
        [(said, "bad", 1, 900)] if said else []
    )
    assert run.events == []
