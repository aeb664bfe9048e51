"""The contract has one test file per backend, so that pytest-xdist can run them in parallel."""

from __future__ import annotations

from pathlib import Path


def test_every_backend_has_a_test_file(cases):
    files = {path.stem for path in Path(__file__).parent.glob("test_contract_*.py")} - {Path(__file__).stem}
    assert files == {f"test_contract_{case.name.replace('-', '_')}" for case in cases}
