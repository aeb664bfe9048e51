"""Backends of other distributions: found by an entry point, and unable to break anything but themselves."""

from __future__ import annotations

import json
from importlib.metadata import distribution
from pathlib import Path

import pytest

from trainer_core import BackendUnavailableError, LocalProcessBackendConfig, OnBackend, TrainerClient
from trainer_core.backends import backend_class
from trainer_core.cli import main
from trainer_core.frontend.preflight import check_plugins
from trainer_core.model.backend_names import (
    EXTENSIONS_GROUP,
    GROUP,
    OWN_BACKENDS,
    OWN_EXTENSIONS,
    OWN_RECIPES,
    RECIPES_GROUP,
    find_plugins,
    list_backends,
    load_class,
)
from trainer_core.model.config import config_class, config_from_dict
from trainer_core.model.preflight import LIMITED
from trainer_core.model.request import Extension

DISTRIBUTION = distribution("trainjob-workflows")
ROOT = Path(__file__).parents[2]
MODULE = """
from trainer_core.model.config import BackendConfig
from trainer_core.testing.recorder import JobRecorder, RecordingBackend

class Config(BackendConfig):
    backend = "NAME"
    implementation = "MODULE:Recording"
    folder: str = "/jobs"

class Recording(RecordingBackend):
    name = "NAME"
    recorder = JobRecorder()

class OfAnotherName(BackendConfig):
    backend = "other"

class WithoutBackend(BackendConfig):
    backend = "NAME"
    implementation = "MODULE:Config"
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a distribution with a backend: ``install("name", module="…", points="…")``."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(name, module=MODULE, points=None, kind="Config"):
        place = f"plugin_of_{name}"
        (tmp_path / f"{place}.py").write_text(module.replace("NAME", name).replace("MODULE", place))
        info = tmp_path / f"{place}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {place}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(points or f"[{GROUP}]\n{name} = {place}:{kind}\n")
        find_plugins.cache_clear()
        return tmp_path

    yield install
    monkeypatch.undo()
    find_plugins.cache_clear()


def test_the_names_of_this_project_are_its_entry_points():
    own = {point.name: point.value for point in DISTRIBUTION.entry_points.select(group=GROUP)}
    assert own == OWN_BACKENDS
    own = {point.name: point.value for point in DISTRIBUTION.entry_points.select(group=EXTENSIONS_GROUP)}
    assert own == OWN_EXTENSIONS
    points = DISTRIBUTION.entry_points.select(group=RECIPES_GROUP)
    assert {point.name: point.value for point in points} == OWN_RECIPES
    assert {load_class(name, value, Extension, None).__name__ for name, value in own.items()} == {
        "PyTorchJob",
        "RunaiFields",
    }
    assert {name: config_class(name).backend for name in OWN_BACKENDS} == {name: name for name in OWN_BACKENDS}


def test_a_backend_of_another_distribution_is_used_by_its_name(install, monkeypatch):
    install("slurm")
    monkeypatch.setenv("TRAINJOB_BACKEND", "slurm")
    client = TrainerClient()
    assert client.config == config_from_dict("slurm", {"folder": "/jobs"})
    assert type(client.backend) is backend_class("slurm")
    assert OnBackend("slurm").backend == "slurm"
    assert list_backends() == sorted([*OWN_BACKENDS, "slurm"])


def test_a_backend_of_this_project_is_not_replaced(install):
    install("local")
    assert config_class("local") is LocalProcessBackendConfig
    assert "local" not in find_plugins()


BROKEN = {
    "a module that is missing": {"points": f"[{GROUP}]\nbroken = no_such_module:Config\n"},
    "a module that raises": {"module": "raise RuntimeError('no licence')"},
    "a module that ends the process": {"module": "raise SystemExit(3)"},
    "a syntax error": {"module": "def"},
    "a class that is missing": {"kind": "Absent"},
    "no class": {"points": f"[{GROUP}]\nbroken = json\n"},
    "a class of another kind": {"points": f"[{GROUP}]\nbroken = json:JSONDecoder\n"},
    "another name": {"kind": "OfAnotherName"},
    "no backend class": {"kind": "WithoutBackend"},
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_backend_is_an_error_that_names_it_and_breaks_no_other(install, fault):
    install("broken", **BROKEN[fault])
    install("sound")
    with pytest.raises(
        BackendUnavailableError,
        match=r"^the broken backend cannot be loaded: \S+ of plugin_of_broken 1.0: .*; update that distribution",
    ) as refused:
        backend_class("broken")
    assert "\n" not in str(refused.value)
    assert backend_class("sound").name == "sound"
    assert OnBackend("broken").backend == "broken"


def test_metadata_that_cannot_be_read_hides_no_other_backend(install):
    install("broken", points="\0 [[ no = entry points\nname only\n")
    install("sound")
    assert "sound" in find_plugins()


def test_what_is_installed_is_read_for_other_names_only(install):
    install("hanging", module="import time; time.sleep(3600)")
    assert [backend_class(OnBackend(name).backend).name for name in OWN_BACKENDS] == [*OWN_BACKENDS]
    assert TrainerClient(config_from_dict("local", {})).list_runtimes()
    assert find_plugins.cache_info().misses == 0
    with pytest.raises(ValueError, match=r"unknown backend 'slurm'; known are .*, hanging, .*, local"):
        config_from_dict("slurm", {})
    assert find_plugins.cache_info().misses == 1


def test_doctor_lists_the_backends_of_other_distributions(install, monkeypatch, capsys):
    folder = install("killing", module="import os; os._exit(7)")
    install("raising", module="raise RuntimeError('no licence')")
    install("sound")
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{ROOT}")
    monkeypatch.setenv("TRAINJOB_HOME", str(folder))
    assert main(["doctor", "--output", "json"]) == 0
    checks = {each["what"]: each for each in json.loads(capsys.readouterr().out)["checks"]}
    shown = {name: checks[f"backend {name}"] for name in ("killing", "raising", "sound")}
    found = {name: (check["state"], check["found"]) for name, check in shown.items()}
    raised = "the raising backend cannot be loaded: plugin_of_raising:Config of plugin_of_raising 1.0: RuntimeError: "
    assert found == {
        "killing": ("limited", "loading it ends Python with code 7"),
        "raising": ("limited", f"{raised}no licence; update that distribution, or uninstall it"),
        "sound": ("ok", "plugin_of_sound 1.0"),
    }


def test_doctor_does_not_wait_for_a_backend_that_hangs(install, monkeypatch):
    folder = install("hanging", module="import time; time.sleep(3600)")
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{ROOT}")
    (check,) = (each for each in check_plugins(seconds=1) if each.what == "backend hanging")
    assert (check.state, check.found) == (LIMITED, "loading it takes more than 1 seconds")
