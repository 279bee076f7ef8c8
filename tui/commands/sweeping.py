"""One training under several strategies: `sweep`."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from typing import Any

from fsdp_tui.telemetry.launch import problems, sweep
from fsdp_tui.telemetry.machine import this_machine
from fsdp_tui.telemetry.report import compare
from fsdp_tui.telemetry.rundir import RunError
from fsdp_tui.telemetry.strategy import SWEEP, StrategyError, parse_strategies
from fsdp_tui.telemetry.view import RunView
from fsdp_tui.tui import tables
from fsdp_tui.tui.commands.common import CommandError, say
from fsdp_tui.tui.commands.launching import SUCCESS, spec_of, train
from fsdp_tui.tui.comparison import as_text


@dataclass
class _Trial:
    """One strategy of a sweep: its run, or why there is none."""

    strategy: str
    run: RunView | None = None
    refused: str = ""

    @property
    def worked(self) -> bool:
        return self.run is not None and self.run.state in SUCCESS

    def failure(self) -> dict[str, Any]:
        """Why it is not in the comparison, and how far it came."""
        run = self.run
        return {
            "strategy": self.strategy,
            "reason": self.refused or (tables.failure(run) if run else ""),
            "run": run.launched.run_id if run and run.launched else None,
            "state": run.state if run else None,
            "steps": run.steps if run else None,
        }


def sweep_strategies(parsed: argparse.Namespace) -> int:
    spec = spec_of(parsed)
    if parsed.strategies is None and spec.target != "demo":
        raise CommandError(
            "which strategies? say --strategies, for example"
            f" fsdp-tui sweep --strategies fsdp2:full_shard,fsdp2:shard_grad_op {spec.script}",
            exit_code=2,
        )
    try:
        strategies = parse_strategies(parsed.strategies if parsed.strategies is not None else ",".join(SWEEP))
    except StrategyError as error:
        raise CommandError(str(error), exit_code=2) from None
    machine = this_machine()
    trials = [(one.strategy, one, problems(one, machine)) for one in sweep(spec, strategies, machine)]
    sound = [one for _, one, found in trials if not found]
    if not sound:
        raise CommandError(trials[0][2][0].text, exit_code=2)
    results: list[_Trial] = []
    try:
        for at, (text, one, found) in enumerate(trials, 1):
            prefix = f"[{at}/{len(trials)}] {text}  "
            if found:
                results.append(_Trial(text, refused=found[0].text))
                say(prefix + found[0].text, aside=True)
                continue
            try:
                run = train(one, prefix)
            except (CommandError, RunError) as error:
                results.append(_Trial(text, refused=str(error)))
                say(prefix + str(error), aside=True)
                continue
            results.append(_Trial(text, run))
            if run.ended is not None and run.state == "stopped" and run.steps < (one.steps or 0):
                break  # Ctrl-C means the sweep, not this strategy alone
    except KeyboardInterrupt:
        say("sweep stopped", aside=True)
    worked = [trial.run for trial in results if trial.worked and trial.run is not None]
    failed = [trial.failure() for trial in results if not trial.worked]
    if parsed.json:
        say(json.dumps({**compare(worked), "failed": failed} if worked else {"runs": [], "rows": [], "failed": failed}))
    else:
        if worked:
            say(as_text(worked))
        if failed:
            say(tables.failures(failed))
    return 0 if len(worked) == len(trials) else 1
