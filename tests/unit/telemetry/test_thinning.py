"""What live viewers get when a run says too much."""

from __future__ import annotations

from itertools import pairwise

from fsdp_tui.telemetry.messages import Beat, Comm, Event, Goodbye, Message, Step, decode, encode
from fsdp_tui.telemetry.thinning import HOLD_S, LIVE_BURST, LIVE_PER_RANK, LIVE_PER_S, Thinning
from tests.unit.telemetry.messages_for_tests import comm, hello, step

BATCH_S = 0.05


def passed(thinning: Thinning, messages: list[Message], ranks: int, now_s: float) -> list[Message]:
    return [decode(body) for body in thinning.pass_on([(one, encode(one)) for one in messages], ranks, now_s)]


def beat(rank: int, number: int) -> Beat:
    return Beat(rank=rank, incarnation=1, sent_ns=number, step=number, sent=0, dropped=0)


def a_step(number: int, ranks: range) -> list[Message]:
    return [one for rank in ranks for one in (step(rank, number), comm(rank, number))]


def test_all_is_passed_on_while_there_is_room() -> None:
    """In the order in which it came, heartbeats last in their batch."""
    thinning = Thinning(0.0)
    for at in range(100):
        said = [*a_step(at + 1, range(4)), Event(at_ns=at, kind="note", severity="note", text="x"), beat(0, at)]
        assert passed(thinning, said, 4, at * BATCH_S) == said
    assert thinning.withheld == 0


def test_steps_are_passed_on_whole_or_not_at_all() -> None:
    """Also when the messages of one come in several batches; as many as there is room for, from the first second to the last."""
    ranks, thinning = 64, Thinning(0.0)
    got: dict[int, int] = {}
    count = 0
    for at in range(20 * 10):  # ten seconds, a step in each batch, half of it in the next: 2,560 messages a second
        said = [*a_step(at, range(32, 64)), *a_step(at + 1, range(32))]
        for one in passed(thinning, said, ranks, at * BATCH_S):
            assert isinstance(one, Step | Comm)
            got[one.step] = got.get(one.step, 0) + 1
            count += 1
    assert {number for step, number in got.items() if 0 < step < 200} == {2 * ranks}
    assert LIVE_BURST / 2 + 10 * LIVE_PER_S - 4 * ranks < count < LIVE_BURST + 10 * LIVE_PER_S + 2 * ranks
    assert thinning.withheld == 20 * 10 * 2 * ranks - count
    assert max(got) >= 195  # the newest is never long ago


def test_a_thousand_ranks_get_a_step_and_their_heartbeats_through_each_second() -> None:
    """Ten messages a second of each are not what a screen can take in; a step that half of them are in, neither."""
    ranks, thinning = 1_024, Thinning(0.0)
    steps: dict[int, int] = {}
    beats: dict[int, list[int]] = {}
    seconds = 20
    for at in range(20 * seconds):
        said: list[Message] = [beat(rank, at) for rank in range(ranks) if rank % 10 == at % 10]
        if at % 6 == 0:
            said += a_step(at // 6 + 1, range(ranks))
        for one in passed(thinning, said, ranks, at * BATCH_S):
            if isinstance(one, Beat):
                beats.setdefault(one.rank, []).append(one.sent_ns)
            elif isinstance(one, Step):
                steps[one.step] = steps.get(one.step, 0) + 1
    assert set(steps.values()) == {ranks}
    assert seconds - 2 <= len(steps) <= 2 * seconds + 2
    waited = max(later - earlier for said_by in beats.values() for earlier, later in pairwise(said_by))
    assert len(beats) == ranks
    assert waited * BATCH_S <= HOLD_S + 0.5 + BATCH_S
    sent = 2 * ranks * len(steps) + sum(map(len, beats.values()))
    assert sent <= LIVE_PER_RANK * ranks * (seconds + 1)


def test_of_heartbeats_that_wait_the_newest_is_passed_on_and_not_after_a_goodbye() -> None:
    """A rank that has said goodbye must not come to life again."""
    ranks, thinning = 1_024, Thinning(0.0)
    for number in (1, 2):
        passed(thinning, a_step(number, range(ranks)), ranks, 0.01)
    assert passed(thinning, [beat(0, 1), beat(1, 1)], ranks, 0.02) == []
    assert passed(thinning, [beat(0, 2), beat(1, 2)], ranks, 0.03) == []
    goodbye = Goodbye(rank=1, incarnation=1, reason="finished", steps=2)
    assert passed(thinning, [goodbye], ranks, 0.04) == [beat(1, 2), goodbye]
    assert passed(thinning, [hello(2)], ranks, 0.02 + HOLD_S) == [hello(2), beat(0, 2)]
