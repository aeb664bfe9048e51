"""The options of a definition in YAML."""

from __future__ import annotations

import json

import pytest

from trainer_core.cli import main


@pytest.fixture
def render(tmp_path, monkeypatch, capsys):
    """Render a definition on the local backend, in this process; return exit code, output and errors."""

    def command(text):
        (tmp_path / "job.yaml").write_text(text)
        monkeypatch.setenv("TRAINJOB_HOME", str(tmp_path / "home"))
        code = main(["render", "-f", str(tmp_path / "job.yaml"), "-o", "json"])
        return code, *capsys.readouterr()

    return command


def test_a_definition_names_its_options(render):
    code, out, _ = render(
        "name: job\nruntime: python\ntrainer: {func: json:dumps, packaging: reference}\n"
        "options:\n- ActiveDeadlineSeconds: 60\n- Suspend\n"
    )
    assert code == 0
    rendered = json.loads(out)
    assert (rendered["active_deadline_seconds"], rendered["suspend"]) == (60, True)


def test_an_unknown_option_is_rejected_with_the_known_options(render):
    code, _, err = render("name: job\ntrainer: {func: json:dumps, packaging: reference}\noptions: [{Queue: nightly}]\n")
    assert code == 2
    assert "unknown option Queue; known are " in err


def test_a_distributed_config_is_rejected_without_a_cluster(render):
    code, _, err = render(
        "name: job\ntrainer: {func: json:dumps, packaging: reference}\n"
        "options: [{DistributedConfig: {nodeSelector: {gpu: h100}}}]\n"
    )
    assert code == 2
    assert "DistributedConfig option is not compatible with LocalProcessBackend" in err


def test_an_error_in_a_distributed_config_has_its_path(render):
    code, _, err = render(
        "name: job\ntrainer: {func: json:dumps, packaging: reference}\n"
        "options: [{DistributedConfig: {tolerations: [{kye: gpu}]}}]\n"
    )
    assert code == 2
    assert "tolerations[0].kye is not known; V1Toleration has " in err
