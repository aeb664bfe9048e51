"""The table of a search: its width, and parameters with the names of its columns. The debug backend trains."""

from __future__ import annotations

import json
import sys

import pytest

from trainer_core.cli import main

FILE = """
name: tune-a-long-one
trial:
  runtime: python
  trainer: {func: "module:train"}
search_space: {value: [3, 1, 2], loss: {uniform: [0.25, 0.5]}}
trial_config: {num_trials: 4}
algorithm: {RandomSearch: {random_state: 4}}
"""
MODULE = """
def train(value: int, loss: float):
    if value == 3:
        raise ValueError("three is refused, for a reason that is longer than a line of the table")
    return {"loss": loss * 1.23456789e-5}
"""


@pytest.fixture
def search(tmp_path, monkeypatch, capsys):
    """Run a search; return what the command prints."""
    (tmp_path / "module.py").write_text(MODULE)
    (tmp_path / "tune.yaml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "module", raising=False)

    def command(*options):
        assert main(["--backend", "debug", "search", "tune.yaml", "--wait", *options]) == 0
        return capsys.readouterr().out

    return command


def test_the_table_of_a_search_fits_80_columns(search):
    lines = search().splitlines()
    table = lines[next(number for number, line in enumerate(lines) if line.startswith("TRIAL")) :]
    assert max(map(len, table[:-1])) <= 80
    assert "value=3" in " ".join(table)


def test_a_parameter_can_have_the_name_of_a_column_or_of_the_objective(search):
    for column, key in (("value", "value"), ("-param.value", "parameters"), ("loss", "parameters")):
        printed = search("--sort", column, "-o", "json")
        trials = json.loads(printed[printed.index('{\n  "name"') :])["trials"]
        name = column.lstrip("-").removeprefix("param.")
        values = [trial[key] if key == "value" else trial[key][name] for trial in trials]
        known = [value for value in values if value is not None]
        assert known == sorted(known, reverse=column.startswith("-"))
        assert len(known) > 1
