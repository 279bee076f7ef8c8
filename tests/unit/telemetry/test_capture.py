"""A capture on its way: from the message to the sentence, the trace, and what is kept of it."""

from __future__ import annotations

import json

import msgspec
import pytest

from fsdp_tui.telemetry.messages import Capture, Part, decode, encode
from fsdp_tui.telemetry.peak import place, why
from fsdp_tui.telemetry.report import show
from fsdp_tui.telemetry.state import CAPTURES_PER_RANK, MAX_CAPTURES, RunState
from fsdp_tui.telemetry.trace import levels, perfetto, plain, summary
from tests.unit.telemetry.messages_for_tests import capture, column


def test_why_says_what_is_there() -> None:
    """Phase, module, units, activations, and the temporary that is a gradient; hand-made bytes of 2**20."""
    mib = 2**20
    made = msgspec.structs.replace(
        capture(),
        peak=column(param_shard=9 * mib, param_unsharded=4 * mib, activation=20 * mib, temp=6 * mib),
        saved_bytes=20 * mib,
        peak_module="blocks.3",
        peak_parts=[
            Part("activation", "blocks.1", 20 * mib, 9),
            Part("temp", "blocks.3", 5 * mib, 2, "grad_unsharded"),
            Part("param_unsharded", "blocks.3", 3 * mib, 1),
            Part("param_unsharded", "<root>", mib, 1),
        ],
    )
    assert why(made) == (
        "backward of blocks.3: two units unsharded (blocks.3, <root>: 4.00 MiB), all activations still alive (20.00 MiB), "
        "first full gradient (blocks.3: 5.00 MiB), other temporary 1.00 MiB"
    )
    later = msgspec.structs.replace(
        made, peak=column(activation=10 * mib, grad_shard=mib, temp=5 * mib), peak_parts=made.peak_parts[1:2]
    )
    assert why(later) == (
        "backward of blocks.3: 50 % of the activations still alive (10.00 MiB), full gradient (blocks.3: 5.00 MiB)"
    )
    recomputed = msgspec.structs.replace(later, peak=column(activation=30 * mib), peak_parts=[])
    assert why(recomputed) == "backward of blocks.3: all activations still alive and recomputed ones (30.00 MiB)"


def test_why_without_anything() -> None:
    """A step that never was higher than at its begin, and one without a result."""
    quiet = msgspec.structs.replace(
        capture(), peak=column(param_shard=5), peak_phase="rest", peak_module="", peak_parts=[]
    )
    assert (why(quiet), place(quiet)) == ("between the phases", "between the phases")
    assert why(Capture(rank=0, step=1, id="x", began_ns=0, step_ns=0, error="no")) == ""


def test_levels_follow_the_rows() -> None:
    """Start plus changes; the peak is among them."""
    rows = levels(capture())
    assert rows.sum(axis=1).tolist() == [1300, 1500, 1600, 1400, 1300, 1400, 1100]
    assert rows[2].tolist() == capture().peak[:10]


def test_trace_is_what_perfetto_opens() -> None:
    """Counters by category and in all, slices, collectives that may overlap, and ranks beside each other in microseconds."""
    trace = json.loads(json.dumps(perfetto("a", [capture(0), capture(1)])))
    events = trace["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1}
    total = [e["args"]["bytes"] for e in events if e["ph"] == "C" and e["name"] == "total" and e["pid"] == 0]
    assert total == [1000, 1300, 1500, 1600, 1400, 1400, 1100]  # what happens at one time is one value
    used = {e["name"] for e in events if e["ph"] == "C"}
    assert used == {"param_shard", "param_unsharded", "activation", "temp", "grad_unsharded", "total"}
    slices = {(e["tid"], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["pid"] == 0}
    assert (1, "forward", 0.012, 0.008) in slices
    assert (1, "backward", 0.028, 0.012) in slices
    assert (2, "blocks.0.up", 0.011, 0.009) in slices
    assert (3, "aten.mm.default", 0.032, 0.008) in slices
    assert (4, "blocks.0.up", 0.028, 0.012) in slices
    calls = [e for e in events if e["ph"] in "be" and e["pid"] == 0]
    assert [(e["ph"], e["ts"]) for e in calls] == [("b", 0.005), ("e", 0.009), ("b", 0.008), ("e", 0.008)]
    assert len({e["id"] for e in calls}) == 2
    (peak,) = (e for e in events if e["ph"] == "i" and e["pid"] == 1)
    assert (peak["ts"], peak["name"]) == (0.031, f"peak: {why(capture())}")


def test_json_has_names() -> None:
    """No index is left for the reader to look up; what is not known is null."""
    (made,) = plain("a", [capture()])["captures"]
    assert made["memory"]["category"][0] == "param_unsharded"
    assert made["memory"]["phase"][-1] == "backward"
    assert made["operator_calls"]["module"] == ["blocks.0.up"] * 3
    assert made["collectives"]["ns"] == [4, None]
    assert made["peak_parts"][3]["becomes"] == "grad_unsharded"
    assert json.loads(json.dumps(made)) == made


def test_show_has_captures() -> None:
    """The newest of each rank, after a snapshot too; a second one with the same id replaces the first."""
    state = RunState()
    for number in range(CAPTURES_PER_RANK + 2):
        state.apply(decode(encode(capture(0, number, id=str(number)))))
    last = str(CAPTURES_PER_RANK + 1)
    state.apply(capture(0, 99, id=last))
    state.apply(capture(1, 99, id=last, error="no memory probe"))
    shown = show(RunState.load(state.dump()).view())["captures"]
    kept = [*range(2, CAPTURES_PER_RANK + 1), 99]
    assert [(one["rank"], one["step"]) for one in shown] == [*((0, step) for step in kept), (1, 99)]
    assert len(state.ranks[0].captures) == CAPTURES_PER_RANK
    assert shown[-2] == summary(capture(0, 99, id=last))
    assert (shown[-2]["peak_bytes"], shown[-2]["categories"]["temp"]) == (1600, 100)
    assert shown[-1]["error"] == "no memory probe"
    assert state.bad_records == 0


def test_captures_are_bounded_over_all_ranks() -> None:
    """Of many ranks only the newest stays."""
    state = RunState()
    for number in range(2):
        for rank in range(MAX_CAPTURES):
            state.apply(capture(rank, number, id=str(number)))
    assert sum(len(known.captures) for known in state.ranks.values()) == MAX_CAPTURES
    assert {known.captures[-1].step for known in state.ranks.values()} == {1}


def test_all_ranks_keep_as_many_captures() -> None:
    """16 ranks share the room for 64: the four newest of each."""
    state = RunState()
    for number in range(6):
        for rank in range(16):
            state.apply(capture(rank, number, id=str(number)))
    assert [[one.step for one in known.captures] for known in state.ranks.values()] == [[2, 3, 4, 5]] * 16


@pytest.mark.parametrize(
    "wrong",
    [
        {"delta_bytes": [1]},
        {"op_ns": []},
        {"module": [9] * 7},
        {"category": [99] * 7},
        {"call_kind": [7, 7]},
        {"peak": []},
        {"op_names": []},
    ],
    ids=str,
)
def test_columns_that_do_not_fit_are_a_bad_record(wrong: dict[str, list[int]]) -> None:
    """So that nobody who reads a capture must check."""
    state = RunState()
    state.apply(msgspec.structs.replace(capture(), **wrong))
    assert state.bad_records == 1
    assert not state.ranks
