"""Whatever a pipeline passes to a component, the step does its work or fails with one short line."""

from __future__ import annotations

import inspect
import json
from typing import Any, get_type_hints

import pytest
from hostile_values import HOSTILE, build_plain_data
from hypothesis import given, strategies as st

from kfp_components.step import entrypoint
from kfp_components.step.executor_input import is_shared
from trainer_core import TrainerClient
from trainer_core.base.text import MAX_MESSAGE

TEXTS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        [
            *("", " ", "\0", "\x1b[31m", "a\nb", "\ud800", "../x", "{", "[", "x" * 2000, "9" * 5000, "1e999", "true"),
            *("pvc://a/b", "s3://a/b", "file:///a", "local", "kubernetes", "debug", "ref", "nan", "2020-13-45"),
            *("{{$.inputs.parameters['run_id']}}", "{{$.inputs.parameters['x']}}", "{{x}}", "$(A)", "$$"),
        ]
    ),
)
PLAIN = build_plain_data(TEXTS)
REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "version": st.sampled_from([1, 2, "1", None, 10**30]) | PLAIN,
        "trainer": PLAIN | st.fixed_dictionaries({"image": TEXTS}, optional={"env": PLAIN, "func_args": PLAIN}),
        "runtime": PLAIN,
        "options": PLAIN,
        "initializer": PLAIN,
        "name": PLAIN,
    },
)
ARTIFACTS = PLAIN | st.fixed_dictionaries(
    {"artifacts": st.lists(st.fixed_dictionaries({"uri": TEXTS}, optional={"name": TEXTS, "metadata": PLAIN}))}
)


def list_inputs(target: Any) -> list[str]:
    signatures = map(inspect.signature, [target, *filter(is_shared, get_type_hints(target).values())])
    parameters = [each for signature in signatures for each in signature.parameters.values()]
    return sorted({each.name for each in parameters if each.kind is each.KEYWORD_ONLY})


def assert_is_one_short_line(text: str) -> None:
    (line,) = text.splitlines()
    assert line.startswith("error: "), line
    assert len(line) <= MAX_MESSAGE + len("error: "), line
    assert line.isprintable(), repr(line)


@pytest.fixture(autouse=True)
def no_job(tmp_path_factory, monkeypatch):
    """A request that passes every check is not submitted."""

    def submit(*_: Any, **__: Any) -> None:
        raise ValueError("submitted")

    monkeypatch.setenv("TRAINJOB_HOME", str(tmp_path_factory.mktemp("hostile")))
    monkeypatch.setattr(TrainerClient, "submit", submit)


@pytest.mark.parametrize("name", sorted(entrypoint.TARGETS))
@HOSTILE
@given(data=st.data())
def test_a_component_refuses_a_hostile_input_in_one_line(name, capfd, tmp_path_factory, data):
    inputs = list_inputs(entrypoint.load_target(name))
    values = data.draw(st.dictionaries(st.sampled_from(inputs), PLAIN, max_size=4), label="parameters")
    if "request" in inputs and data.draw(st.booleans(), label="with a request"):
        values["request"] = data.draw(REQUESTS, label="request")
    artifacts = data.draw(st.dictionaries(st.sampled_from(inputs), ARTIFACTS, max_size=1), label="artifacts")
    executor_input = {"inputs": {"parameterValues": values, "artifacts": artifacts}, "outputs": {}}

    code = entrypoint.main([name, json.dumps(executor_input)])

    printed = capfd.readouterr().err
    assert code in (0, 1), printed
    if code:
        assert_is_one_short_line(printed)


@HOSTILE
@given(data=PLAIN, text=TEXTS, request=TEXTS)
def test_a_hostile_executor_input_is_refused_in_one_line(capfd, data, text, request):
    for given_text in (json.dumps(data), text, json.dumps({"inputs": data}), json.dumps({"outputs": data})):
        code = entrypoint.main(["submit", given_text, f"--request={request}"])

        assert code == 1
        assert_is_one_short_line(capfd.readouterr().err)
