"""Everything that passes between ranks, hub and viewers, and into the recording.

Every message is an array on the wire and append-only: a newer reader fills the defaults of an older writer's missing
fields, and an older reader ignores a newer writer's extra ones, so fields are never reordered or removed. (msgspec decodes
a union of arrays or of maps, not of both; the frequent messages decide.)
Bytes and nanoseconds are integers. `None` means "not known"; it never stands for zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec

PROTOCOL = 1
"""Major version. A reader refuses another major with one plain sentence."""

CATEGORIES = (
    "param_shard",
    "param_unsharded",
    "grad_shard",
    "grad_unsharded",
    "optimizer",
    "buffer",
    "comm_buffer",
    "activation",
    "temp",
    "unexplained",
    "cache",
    "non_torch",
    "others",
)
"""Memory categories, in the order of every memory column on the wire.

The first ten add up to `total` (CUDA: allocated; CPU: live tensor storages). Plus `cache` that is reserved memory (CUDA),
plus `non_torch` and `others` what NVML reports for the device.
"""
TOTAL_CATEGORIES = CATEGORIES[:10]

PHASES = ("input", "forward", "backward", "optimizer", "rest", "checkpoint")
"""Wall-clock phases of a step; they add up to the step. A phase that is not known is None and its time is in `rest`."""

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce")
"""`Comm.kind` indexes this."""
COMM_PHASES = ("forward", "backward", "other")
"""`Comm.phase` indexes this; `other` is a collective outside both, such as gradient clipping's."""

STATES = ("starting", "running", "paused", "stopped", "finished", "failed", "lost")
ENDED = frozenset({"stopped", "finished", "failed", "lost"})
STOPPING = ("stop_waits", "stop_sigterm", "stop_sigkill")
"""Kinds of the events that say what a stop which takes long has come to."""

# Bounds for what a socket may deliver. 2**63-1 is also SQLite's largest integer.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Signed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Rank = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Text = Annotated[str, msgspec.Meta(max_length=100_000)]
Memory = Annotated[list[Signed | None], msgspec.Meta(max_length=64)]
"""One number per category in the order of CATEGORIES, then `total`: 14 entries."""


class Launched(msgspec.Struct, frozen=True, array_like=True, tag="launched", kw_only=True):
    """What was asked for: the first message of every run, made by the launcher."""

    run_id: Text
    name: Text
    created_ns: Count
    command: list[Text]
    """The command line that repeats this launch."""
    nproc: Count
    strategy: Text
    """Requested strategy in its text form (`telemetry.strategy`)."""
    options: dict[str, str | int | float | bool | None] = {}
    """The other options of the launch that matter when runs are compared (model, data, batch, seed, precision, ...)."""
    steps: Count | None = None
    """Planned number of optimizer steps; None: until stopped."""
    proto: int = PROTOCOL


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello", kw_only=True):
    """A rank is there. Sent once per process; a restarted rank has a new incarnation."""

    rank: Rank
    world_size: Count
    incarnation: Count
    host: Text
    pid: Count
    pid_started: float
    """psutil's create_time of the process: pid and this together name it for good."""
    device: Text
    """"cpu" or "cuda:0" ..."""
    device_name: Text
    capacity_bytes: Count | None
    """Memory of the device (CUDA) or of the host (CPU)."""
    backend: Text
    versions: dict[str, str]
    proto: int = PROTOCOL


class Unit(msgspec.Struct, frozen=True, array_like=True):
    """One group that owns parameters: what FSDP gathers and frees together."""

    name: Text
    """Relative to the model, wrapper prefixes removed; the root's is `<root>`."""
    params: Count
    """Elements in this unit over all ranks, a tied parameter once."""
    shard_bytes: Count
    """What this rank stores of it, padding included."""
    unsharded_bytes: Count
    """What one all-gather of it makes live on a rank."""
    padding_bytes: Count | None = None
    """Of `shard_bytes`, what holds no parameter."""
    frozen_params: Count | None = None
    """Of `params`, those that need no gradient."""
    frozen_grad_bytes: Count | None = None
    """Gradient memory that this rank spends on them: FSDP1 has one gradient for all of a flat parameter."""
    reduce_bytes: Count | None = None
    """What goes into one reduction of its gradients, in the type that is reduced, padding included; 0: all of it is frozen."""
    kept: bool | None = None
    """Whether its parameters stay gathered from forward to backward."""


class Tied(msgspec.Struct, frozen=True, array_like=True):
    """A parameter that several modules use. It counts once, where its owner is."""

    name: Text
    """The first name it has in the model."""
    aliases: list[Text]
    nbytes: Count
    """Of the whole parameter, in its stored type."""


class Outside(msgspec.Struct, frozen=True, array_like=True):
    """Live tensors of one type and shape that neither the model nor an optimizer owns."""

    what: Text
    """"float32 256x128"."""
    tensors: Count
    nbytes: Count
    """Of all of them."""


class Structure(msgspec.Struct, frozen=True, array_like=True, tag="structure", kw_only=True):
    """What the rank trains, sent when it is first known and when it changes."""

    rank: Rank
    effective: Text
    """The strategy PyTorch really runs, in text form."""
    detail: dict[str, str | int | float | bool | None]
    units: Annotated[list[Unit], msgspec.Meta(max_length=100_000)]
    buckets: list[Count] = []
    """DDP: bytes of each gradient bucket."""
    groups: list[list[Rank]] = []
    """Global ranks of each process group that `Comm.group` indexes."""
    params: Count = 0
    trainable_params: Count = 0
    param_bytes: Count = 0
    """Of the unsharded model in its stored type, a tied parameter once."""
    ideal_state_bytes: Count | None = None
    """Model states (parameters, gradients, optimizer) per rank if they were cut into exactly equal parts."""
    probes: dict[str, str] = {}
    """Probe -> "ok" or "not available: why"."""
    tied: list[Tied] = []
    padding_bytes: Count | None = None
    """Of this rank's parameter shards, what holds no parameter."""
    frozen_bytes: Count | None = None
    """Of `param_bytes`, what needs no gradient."""
    buffer_bytes: Count | None = None
    """Of the model's buffers on this rank."""
    ignored_bytes: Count | None = None
    """Parameters that FSDP was told to leave alone: whole on this rank, and their gradients are nobody's to reduce."""
    ignored_trainable_bytes: Count | None = None
    ignored: list[Text] = []
    """Their names, the largest first; the smallest of many are left out."""
    replicated_bytes: Count | None = None
    """Parameters that are whole here and on another rank: ignored ones, and all that the strategy does not shard."""
    host_bytes: Count | None = None
    """Parameters, gradients and optimizer states on the host: beside the device's categories, except on a CPU, where they
    are the same memory (`host_is_device`)."""
    host_is_device: bool = False
    optimizer_expected_bytes: Count | None = None
    """What the optimizer keeps once it has stepped; None for one whose rule is not known."""
    no_sync_bytes: Count | None = None
    """Full-size gradients that waited for the next micro-batch in the newest step that was looked at."""
    outside: list[Outside] = []
    """What `unexplained` is made of, as far as Python holds it, the largest first; the smallest of many are left out."""
    blocks: Count | None = None
    """Repeated blocks of the model, wrapped or not."""
    largest_block_params: Count | None = None
    optimized: Count | None = None
    """Parameters of the model (tensors, not elements) that an optimizer has; 0: it trains nothing of this model."""


class Step(msgspec.Struct, frozen=True, array_like=True, tag="s", gc=False):
    """One optimizer step of one rank."""

    rank: Rank
    seq: Count
    step: Count
    """1 for the first."""
    ended_ns: Count
    """Wall clock (time.time_ns) at the end of the step."""
    step_ns: Count
    phases_ns: list[Count | None]
    """In the order of PHASES."""
    loss: float | None
    tokens: Count | None
    memory: Memory
    """When the last optimizer.step() returned, before any zero_grad."""
    peak: Memory
    """At the highest moment inside the step."""
    peak_phase: Text
    peak_unit: int
    """Index into Structure.units; -1: in no unit."""
    dropped: Count
    """Messages this rank has dropped so far."""
    overhead_ns: Count
    """Time the probes took on the training thread in this step."""
    looked_step: Count = 0
    """The step that `memory` and `peak` are of: the newest one whose every event was looked at."""
    peak_units: Count | None = None
    """Units whose parameters were gathered, or on their way, at the peak: more than the one in use are kept or prefetched."""
    samples: Count | None = None
    """First dimension of the model's inputs, over the step's forwards; None: no forward was seen."""
    metrics: dict[Text, float] = {}
    """What the script has logged beside its loss."""
    forwards: Count | None = None
    """Of the model, with gradients."""
    backwards: Count | None = None


class Comm(msgspec.Struct, frozen=True, array_like=True, tag="c", gc=False):
    """The collectives of one step of one rank, in the order they were issued, as columns of equal length."""

    rank: Rank
    seq: Count
    step: Count
    unit: list[Signed]
    """Index into Structure.units; -1: belongs to no unit; DDP buckets count down from -2 (-2 is bucket 0)."""
    kind: list[Count]
    phase: list[Count]
    group: list[Count]
    nbytes: list[Count]
    """Gathered output, or reduce input."""
    duration_ns: list[Signed]
    """Issue to completion; -1: not known."""
    exposed_ns: list[Signed]
    """Time compute waited for it; -1: not known."""
    reductions_ns: Signed = -1
    """DDP's buckets together: first all-reduce's begin to last one's end, over the step's backwards; -1: not known."""
    reductions_exposed_ns: Signed = -1
    """The part of it after the gradients were computed."""


class Gauge(msgspec.Struct, frozen=True, array_like=True, tag="g", gc=False):
    """Slow readings of one rank's host and device, about once a second."""

    rank: Rank
    taken_ns: Count
    values: dict[str, int | float | None]
    """`rss_bytes`; on CUDA also what torch's allocator and NVML say of the device (`runner.devices` has the names). A reading
    that should be there and is not is None, and its reason is in `missing`."""
    missing: dict[str, str] = {}
    """Reading -> why it is not available."""
    throttle: list[Text] | None = None
    """Why the GPU does not run at its full clock, in words; empty: it does; None: not known."""
    others: list[tuple[Count, Count | None]] | None = None
    """Other processes on the device, as NVML names them: pid and bytes. None: not known."""


class Where(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a rank's training is at a moment, as another thread sees it."""

    phase: Text
    """One of PHASES."""
    calls: Count
    """Collectives issued so far, over all steps: the rank with fewest is behind."""
    kind: Signed = -1
    """The newest of them: index into COLLECTIVES, -1 for none yet."""
    unit: Signed = -1
    """As in `Comm`."""
    inside: bool = False
    """Whether that one is not known to be complete."""


class Beat(msgspec.Struct, frozen=True, array_like=True, tag="b", gc=False):
    """Every half second from the sender thread: the process lives. `step` shows whether its training does."""

    rank: Rank
    incarnation: Count
    sent_ns: Count
    step: Count
    sent: Count
    dropped: Count
    paused: bool = False
    where: Where | None = None
    """None: not known, or nothing is trained yet."""


class Goodbye(msgspec.Struct, frozen=True, array_like=True, tag="goodbye", kw_only=True):
    """The last message of a rank that could say one."""

    rank: Rank
    incarnation: Count
    reason: Text
    """"finished", "stopped" or "error"."""
    steps: Count
    error: Text = ""
    """Last line of the traceback."""
    exit_code: int | None = None
    """What the process is about to exit with, where that is known."""


class Event(msgspec.Struct, frozen=True, array_like=True, tag="event", kw_only=True):
    """Something a person wants to know about, with its time."""

    at_ns: Count
    kind: Text
    """Machine-readable: "hub_gap", "rank_lost", "stop_requested", ..."""
    severity: Text
    """"ok", "note", "warn" or "bad"."""
    text: Text
    rank: Rank | None = None
    step: Count | None = None


class Ended(msgspec.Struct, frozen=True, array_like=True, tag="ended", kw_only=True):
    """The run is over; the launcher's word, or the hub's when there is no launcher left to say it."""

    state: Text
    ended_ns: Count
    exit_codes: dict[str, int]
    """Rank (as text) -> exit code of its process; negative: the signal that ended it."""
    stop_rung: Text | None = None
    """"agreed", "sigterm" or "sigkill"; None: nobody asked it to stop."""
    failed_rank: Rank | None = None
    reason: Text = ""
    log_tail: list[Text] = []


class Command(msgspec.Struct, frozen=True, array_like=True, tag="command", kw_only=True):
    """A viewer's request, passed by the hub to every rank."""

    id: Text
    kind: Text
    """"stop", "pause", "resume", "capture", "stacks"."""
    ranks: Annotated[list[Rank], msgspec.Meta(max_length=100_000)] = []
    """Which ranks a capture or stacks are of; empty: all."""
    number: Count = 0
    """Orders captures; the hub gives it."""


class Ack(msgspec.Struct, frozen=True, array_like=True, tag="ack", kw_only=True):
    """The rank has the command; it acts at the next step boundary that all ranks agree on (stacks: it has sent them)."""

    rank: Rank
    id: Text


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """One call on a thread's stack."""

    file: Text
    line: Count
    function: Text
    code: Text
    """The source line; "" when it cannot be read."""


class Thread(msgspec.Struct, frozen=True, array_like=True):
    """What one thread is doing."""

    name: Text
    frames: list[Frame]
    """The innermost last; of a very deep stack the middle is left out."""


class Stack(msgspec.Struct, frozen=True, array_like=True, tag="stack", kw_only=True):
    """What a rank is doing now, asked of its sender's thread: it answers while the training hangs in a collective."""

    rank: Rank
    id: Text
    """Of the command that asked for it."""
    taken_ns: Count
    threads: list[Thread]
    """The training's first, then those that Python has not made: autograd's, which run backward on a device."""


class Part(msgspec.Struct, frozen=True, array_like=True):
    """What one module holds in one category at the highest moment of a captured step."""

    category: Text
    module: Text
    """A unit's or module's name; "" when it belongs to none."""
    nbytes: Count
    storages: Count
    becomes: Text = ""
    """The category it has later in the step, when that is another: a gradient is temporary until it is complete."""


class Capture(msgspec.Struct, frozen=True, array_like=True, tag="capture", kw_only=True):
    """Every allocation and free of one step of one rank, as columns; times are nanoseconds since the step began.

    `module` columns index `modules` (0 is ""), `phase` columns index PHASES, `category` indexes CATEGORIES.
    """

    rank: Rank
    step: Count
    id: Text
    """Of the command that asked for it."""
    began_ns: Count
    """Wall clock at the beginning of the step."""
    step_ns: Count
    error: Text = ""
    """Why there is no result; "" when there is one."""
    modules: list[Text] = []
    base: Memory = []
    """What was there when the step began."""

    at_ns: list[Count] = []
    delta_bytes: list[Signed] = []
    """Taken, or freed when negative. A change of category is two rows of one time, first out and then in."""
    category: list[Count] = []
    module: list[Count] = []
    phase: list[Count] = []
    events: Count = 0
    """Rows before coalescing: more than there are in the columns when the step had too many."""

    peak: Memory = []
    peak_at_ns: Count = 0
    peak_phase: Text = ""
    peak_module: Text = ""
    peak_parts: list[Part] = []
    """The largest first; the smallest of many are left out."""
    saved_bytes: Count = 0
    """Activations when backward began; with accumulation, the most of all micro-batches."""

    op_names: list[Text] = []
    op: list[Count] = []
    op_at_ns: list[Count] = []
    op_ns: list[Count] = []
    op_module: list[Count] = []
    op_phase: list[Count] = []
    ops: Count = 0
    """Operators before the shortest of many were left out."""

    span_module: list[Count] = []
    """Forward of each module, the recomputed one in backward included."""
    span_at_ns: list[Count] = []
    span_ns: list[Count] = []

    call_kind: list[Count] = []
    """Index into COLLECTIVES."""
    call_module: list[Count] = []
    call_nbytes: list[Count] = []
    call_at_ns: list[Count] = []
    call_ns: list[Signed] = []
    """-1: not known."""

    limits: list[Text] = []
    """What could not be seen, one sentence each."""


Message = (
    Launched
    | Hello
    | Structure
    | Step
    | Comm
    | Gauge
    | Beat
    | Goodbye
    | Event
    | Ended
    | Command
    | Ack
    | Capture
    | Stack
)
Later = Callable[[], Message]
"""A message that is made when it is sent: the same each time it is asked for."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


class BadMessage(ValueError):
    """Bytes that are no message of this protocol."""


def encode(message: Message) -> bytes:
    """One message as msgpack."""
    return _encoder.encode(message)


def decode(body: bytes | memoryview) -> Message:
    """One message from msgpack.

    Raises:
        BadMessage: not a message of this protocol (an unknown tag included). Count it and go on.
    """
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:  # deep nesting is a RecursionError
        raise BadMessage(str(error)) from None
