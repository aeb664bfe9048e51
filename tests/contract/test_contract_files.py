"""A file of the contract for each backend: several can run at the same time."""

from __future__ import annotations

from pathlib import Path


def test_every_backend_has_a_file_of_its_own(cases):
    files = {path.stem for path in Path(__file__).parent.glob("test_contract_*.py")} - {Path(__file__).stem}
    assert files == {f"test_contract_{case.name.replace('-', '_')}" for case in cases}
