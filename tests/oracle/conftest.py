"""The front ends have helpers in their own suites."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "kfp"))
# Tasks of these tests that name no backend train here.
os.environ["AIRFLOW__TRAINJOB__BACKEND"] = "local"
