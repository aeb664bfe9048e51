"""torchrun, which leaves in the record of its node how its processes ended: `exits`, the exit code by rank."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from . import cgroup, env, termination

#: Seconds after the first failure in which a process fails for itself: torchrun ends the others then.
_TOGETHER = 5


def main(script: str) -> None:
    """Run torchrun in this process for a script."""
    import runpy  # Not in the processes of the training.

    kills = cgroup.OomKills()

    def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        failures: dict[int, Any] = getattr(error, "failures", {})
        if failures:
            end = min(each.timestamp for each in failures.values()) + _TOGETHER
            exits = {str(rank): each.exitcode for rank, each in failures.items() if each.timestamp <= end}
            termination.report_values(Path(env.setting(env.TERMINATION_LOG)), exits=exits, **kills.describe())
        elif kind.__name__ != "SignalException":  # It was told to stop.
            termination.report_error(error)
        while trace is not None and trace.tb_next and f"{os.sep}torch{os.sep}" not in trace.tb_frame.f_code.co_filename:
            trace = trace.tb_next
        sys.__excepthook__(kind, error, trace)

    sys.excepthook = report
    sys.argv[1:] = [script]
    runpy.run_module("torch.distributed.run", run_name="__main__", alter_sys=True)
