"""The attacks use the helpers of other suites."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("local", "containers", "kubernetes")]
