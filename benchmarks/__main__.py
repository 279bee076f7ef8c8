"""Runs the benchmarks named on the command line, or all of them."""

from __future__ import annotations

import sys
from importlib import import_module

BENCHMARKS = {
    "startup": "time to --help and to the first screen",
    "enqueue": "cost of handing one message to telemetry, on the training thread",
    "overhead": "paired steps with and without the probes",
    "wrappers": "cost of a wrapped call times calls per step, end of a step, memory per rank",
    "draw": "CPU per refresh of the charts",
    "screens": "the Run and the Comm screen of live runs, from messages to escape codes",
    "keys": "how soon a key is answered while 1,024 ranks send ten messages a second each",
    "replay": "opening a long recording, and going to any step of it",
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"no benchmark {unknown[0]!r}: expected some of {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    for name in names or BENCHMARKS:
        print(f"\n{name}: {BENCHMARKS[name]}", flush=True)
        for line in import_module(f"benchmarks.{name}").run():
            print(f"  {line}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
