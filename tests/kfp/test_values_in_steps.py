"""What goes in through a KFP step comes out of its job with the value and type that the signature names."""

from __future__ import annotations

import importlib
import json

import odd_values
import pytest
import yaml
from kfp_driver import request_for

from kfp_components.step import entrypoint
from kfp_components.step.request_encoding import encode_request


@pytest.fixture
def training(tmp_path, monkeypatch):
    """The module with the training function of `odd_values`."""
    (tmp_path / "odd_training.py").write_text(odd_values.SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "odd_training", raising=False)
    importlib.invalidate_caches()
    return importlib.import_module("odd_training")


def test_arguments_of_a_request_are_those_of_a_plain_call(task, training, tmp_path):
    cases = list(odd_values.each_case(odd_values.convert))
    request = request_for(training.train, {**odd_values.accepted(cases), "out": str(tmp_path / "out")})

    assert entrypoint.main([*task("train").command[3:], f"--request={encode_request(request)}"]) == 0
    assert odd_values.written(tmp_path / "out", cases) == odd_values.answers(cases)


def test_texts_that_a_pipeline_passes_are_those_of_a_plain_call(task, training, tmp_path):
    texts = tuple(text for text in odd_values.TEXTS if text.isascii())
    cases = list(odd_values.each_case(odd_values.convert, texts))
    request = request_for(training.train, {"out": str(tmp_path / "out")})

    finished = task("train", request=request, func_args=odd_values.accepted(cases)).run()

    assert finished.returncode == 0, finished.stderr[-2000:]
    assert odd_values.written(tmp_path / "out", cases) == odd_values.answers(cases)


@pytest.mark.parametrize("write", [yaml.safe_dump, json.dumps])
def test_a_definition_file_is_read_as_everywhere(task, training, tmp_path, monkeypatch, write):
    cases = [case for case in odd_values.each_case(odd_values.convert) if case[1] not in ("1E5", "1e-5", "1.5e5")]
    args = {**odd_values.accepted(cases), "out": str(tmp_path / "out")}
    path = tmp_path / "job.yaml"
    path.write_text(write({"runtime": "python", "trainer": {"func": "odd_training:train", "func_args": args}}))
    monkeypatch.chdir(tmp_path)

    finished = task("train", artifacts={"request_file": path}).run()

    assert finished.returncode == 0, finished.stderr[-2000:]
    assert odd_values.written(tmp_path / "out", cases) == odd_values.answers(cases)
