"""The form of the Launch screen without its widgets: its fields, the launch that they mean, and back."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from fsdp_tui.telemetry.launch import OPTIONS, SHARDING, LaunchSpec, Option, Problem, written
from fsdp_tui.telemetry.strategy import DEFAULT
from fsdp_tui.tui.format import OWN

STRATEGIES = (
    DEFAULT,
    "fsdp2:shard_grad_op",
    "fsdp2:reshard=2",
    "fsdp2:hybrid_shard",
    "fsdp2:no_shard",
    "fsdp1:full_shard",
    "fsdp1:shard_grad_op",
    "fsdp1:hybrid_shard",
    "fsdp1:hybrid_shard_zero2",
    "fsdp1:no_shard",
    "ddp",
    "single",
)
OTHER = "other"
Value = str | bool


class Field(NamedTuple):
    """One row of the form."""

    name: str
    label: str
    help: str
    choices: tuple[str, ...] = ()
    kind: type = str
    default: Value = ""
    when: str = ""
    """"demo" or "script": only for that kind of target."""
    blank: str = ""
    """What it means to leave it empty, or as it is."""
    example: str = ""
    """For a field that has no such meaning."""

    def left_alone(self, *, demo: bool) -> str:
        """What it means to leave it empty: of a script, its sharding stays its own."""
        return OWN if self.name in SHARDING and not demo else self.blank


def _from_option(option: Option, choices: tuple[str, ...] = ()) -> Field:
    # An option of the sharding is empty until it is asked for.
    prefilled = option.field not in SHARDING and getattr(LaunchSpec(), option.field) is not None
    return Field(
        option.field,
        option.flag.removeprefix("--").replace("-", " "),
        option.help,
        choices or option.choices,
        option.kind,
        False if option.kind is bool else option.default if prefilled else "",
        "demo" if option.demo_only else "",
        option.default,
    )


_BY_NAME = {option.field: option for option in OPTIONS}
_SPECIAL = {
    "target": Field(
        "target",
        "what",
        "The demo's training, a Python script, or a module as with python -m.",
        ("demo", "script", "module"),
        default="demo",
        blank="demo",
    ),
    "script": Field(
        "script", "script", "Path of the script, or name of the module.", when="script", example="train.py"
    ),
    "args": Field(
        "args", "arguments", "The script's own arguments, as in a shell.", when="script", example="--config a.yaml"
    ),
    "directory": Field(
        "directory", "directory", "Working directory of the ranks.", when="script", blank="where this program runs"
    ),
    "env": Field(
        "env",
        "environment",
        "Variables for the ranks, as NCCL_DEBUG=INFO; several are separated and quoted as in a shell. They are recorded with the run.",
        blank="none",
    ),
    "strategy": _from_option(_BY_NAME["strategy"], choices=(*STRATEGIES, OTHER)),
    "strategy_text": Field(
        "strategy_text",
        "other",
        "A strategy in its text form: fsdp2:reshard=4, fsdp1:hybrid_shard=2x2 (replicate x shard), ...",
        example="fsdp1:hybrid_shard=2x2",
    ),
}
_GROUPS = (
    ("training", ("target", "script", "args", "directory", "model", "data", "batch", "seq", "lr", "seed", "steps")),
    ("sharding", ("strategy", "strategy_text", "nproc", "wrap", "precision", "reduce")),
    ("memory and time", ("checkpointing", "cpu_offload", "prefetch", "compile", "accumulate", "no_sync")),
    ("run", ("name", "env", "telemetry")),
)
GROUPS = tuple(
    (title, tuple(_SPECIAL.get(name) or _from_option(_BY_NAME[name]) for name in names)) for title, names in _GROUPS
)
FIELDS = {field.name: field for _, fields in GROUPS for field in fields}


def read_form(values: Mapping[str, Value]) -> tuple[LaunchSpec, list[Problem]]:
    """The launch that a filled-in form means, and what in it is not even a value."""
    found: list[Problem] = []
    given: dict[str, object] = {}
    demo = values.get("target") == "demo"
    for name, field in FIELDS.items():
        value = values.get(name, field.default)
        option = _BY_NAME.get(name)
        if option is None or (option.demo_only and not demo):
            continue
        if isinstance(value, bool):
            given[name] = value
            continue
        text = value.strip()
        if name == "strategy" and text == OTHER:
            text = str(values.get("strategy_text", "")).strip() or OTHER
        if not text:  # its default, which the empty field shows
            continue
        try:
            given[name] = option.kind(text)
        except ValueError:
            found.append(Problem(name, f"{option.flag} {text}: expected {_expected(option)}"))
    if not demo:
        given["target"] = values.get("target")
        given["script"] = str(values.get("script", "")).strip() or None
        given["directory"] = str(values.get("directory", "")).strip() or None
        given["args"] = tuple(_words("args", "arguments", values, found))
        given["asked"] = tuple(name for name in SHARDING if given.get(name, False) is not False)
    env = {}
    for word in _words("env", "environment", values, found):
        name, sign, value = word.partition("=")
        if not (name and sign):
            found.append(Problem("env", f"environment: {word}: expected NAME=VALUE"))
        env[name] = value
    return msgspec.structs.replace(LaunchSpec(), **given, env=env), found


def _words(name: str, label: str, values: Mapping[str, Value], found: list[Problem]) -> list[str]:
    try:
        return shlex.split(str(values.get(name, "")))
    except ValueError as error:
        found.append(Problem(name, f"{label}: {error}"))
        return []


def fill_form(spec: LaunchSpec) -> dict[str, Value]:
    """The form that means this launch: `read_form` of it gives the launch again."""
    values: dict[str, Value] = {name: field.default for name, field in FIELDS.items()}
    values |= {
        name: value if isinstance(value, bool) else str(value)
        for name, value in written(spec).items()
        if name != "strategy"
    }
    if strategy := written(spec).get("strategy"):
        known = strategy in STRATEGIES
        values |= {"strategy": strategy if known else OTHER, "strategy_text": "" if known else strategy}
    if spec.target != "demo":
        values |= {"script": spec.script or "", "args": shlex.join(spec.args), "directory": spec.directory or ""}
    env = shlex.join(f"{name}={value}" for name, value in spec.env.items())
    return values | {"target": spec.target, "env": env}


def _expected(option: Option) -> str:
    return {int: "a whole number", float: "a number"}.get(option.kind, "a text")
