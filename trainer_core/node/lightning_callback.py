"""The callback that Lightning gets by the entry points of `status_server`: it reports as transformers does."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from typing import Any

from . import progress, trainer_status


class ProgressCallback:
    """Reports the steps and metrics of a Trainer, seldom: reading metrics waits for the device.

    `create` adds Lightning's own Callback as a base: this module can be imported without Lightning.
    """

    _due = -math.inf
    _total = 0

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Read the number of steps; of some data it is infinite or unknown."""
        del module
        with contextlib.suppress(Exception):
            self._total = int(trainer.estimated_stepping_batches)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """Report if the interval has passed."""
        if time.monotonic() >= self._due:
            self._report(trainer)

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """Report the last step and metrics."""
        del module
        self._report(trainer)

    def _report(self, trainer: Any) -> None:
        self._due = time.monotonic() + trainer_status.INTERVAL
        if trainer.is_global_zero:
            with contextlib.suppress(Exception):  # A report must not end the training.
                step = trainer.global_step
                metrics = {name: progress.to_number(value) for name, value in trainer.callback_metrics.items()}
                metrics.update(current_step=step, total_steps=self._total)
                percent = 100 * step // self._total if self._total > 0 else None
                body = json.dumps(trainer_status.build_status(percent, None, metrics))
                trainer_status.send(body.encode(), os.environ.__getitem__)


def create() -> list[ProgressCallback]:
    """Return the callbacks that each Trainer gets."""
    lightning: Any = sys.modules.get("lightning.pytorch") or sys.modules["pytorch_lightning"]
    return [type("ProgressCallback", (ProgressCallback, lightning.Callback), {})()]
