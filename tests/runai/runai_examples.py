"""The example manifests of Run:ai, where they are at hand: written for a template engine, filled in here."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

_SHARED = Path(os.environ.get("TRAINJOB_CRD_DIR") or Path(__file__).parents[3] / "shared" / "crds")
_VALUES = {
    "_NAME_": "twl1",
    "project": "team-a",
    "clusterId": "11111111-2222",
    "image": "ubuntu",
    "cpu": "100m",
    "memory": "512M",
    "gpu": "8",
    "workers": "3",
    "ttl": "10s",
}


def example(name: str) -> dict[str, Any]:
    """An example manifest by its file name; the test is skipped where it is absent."""
    path = _SHARED / "runai-examples" / "templates" / name
    if not path.exists():
        pytest.skip(f"the example manifests of Run:ai are not at {path}")
    text = "\n".join(line for line in path.read_text().splitlines() if not re.match(r"\s*\{\{-", line))
    filled = re.sub(r"\{\{\.(\w+)\}\}", lambda found: _VALUES[found[1]], text)
    loaded: dict[str, Any] = yaml.safe_load(filled)
    return loaded
