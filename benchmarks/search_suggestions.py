"""What one suggestion of Optuna's TPE costs after 10,000 trials, in a new process and in one that made the one before.

Prints seconds of processor time, each with its limit.
"""

from __future__ import annotations

import random
import time

from trainer_core.search.definition import OptunaSampler, RandomSearch
from trainer_core.search.history import SettledTrial
from trainer_core.search.sampling import suggest
from trainer_core.search.space import Search, parse_space

LINES = 10_000
SPACE = parse_space(
    {"lr": Search.loguniform(1e-4, 1e-1), "drop": Search.uniform(0, 1), "batch": [16, 32], "layers": [1, 2, 3, 4]}
)


def main() -> None:
    """Measure and print."""
    draw = random.Random(1)  # noqa: S311 -- equal values in each run
    lines = [
        SettledTrial(n, "Complete", draw.random(), (), suggest(SPACE, RandomSearch(), "", n, (), {}))
        for n in range(LINES)
    ]
    suggest(SPACE, OptunaSampler(), "warm up", 0, (), {})
    for what, limit in ((f"{LINES} trials", 1.5), ("one more", 0.2)):
        start = time.process_time()
        parameters = suggest(SPACE, OptunaSampler(), "seed", len(lines), lines, {})
        seconds = time.process_time() - start
        lines.append(SettledTrial(len(lines), "Complete", draw.random(), (), parameters))
        print(f"{what}: {seconds:.2f} s, limit {limit} s, ratio {seconds / limit:.2f}")


if __name__ == "__main__":
    main()
