"""Recipes: one class per library, also of another distribution."""

from __future__ import annotations

import functools

import pytest
from fake_cluster import crds
from k8s_crds import server

from trainer_core import Checkpoints, HuggingFaceDatasetInitializer, HuggingFaceModelInitializer, Initializer, Name
from trainer_core.backends import backend_class
from trainer_core.backends.trainer_v2 import manifest
from trainer_core.backends.trainer_v2.validation import check_request
from trainer_core.base.errors import UnsupportedError
from trainer_core.definition.request_builder import build_request
from trainer_core.definition.trainers import trainer_from_dict
from trainer_core.k8s import runtimes
from trainer_core.model.backend_names import RECIPES_GROUP, find_plugins
from trainer_core.model.recipe import find_recipe
from trainer_core.model.request import TrainJobRequest
from trainer_core.packaging.argv_payload import find_payload
from trainer_core.runtime_admin.runtime_builder import RuntimeParameters, build_torch_runtime, build_trl_runtime

RECIPE = """
from dataclasses import dataclass
from trainer_core.model.recipe import Recipe

@dataclass
class Settings(Recipe):
    framework = "axolotl"
    command = ("axolotl", "train")
    epochs: int = 1
    num_nodes: int | None = None

    @classmethod
    def to_args(cls, config, dataset_uri=None):
        return [f"--num-epochs={config['epochs']}", f"--data={dataset_uri}"]
"""


@pytest.fixture
def axolotl(tmp_path, monkeypatch):
    """Install a distribution with a recipe."""
    (tmp_path / "axolotl_recipe.py").write_text(RECIPE)
    info = tmp_path / "axolotl_recipe-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: axolotl-recipe\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{RECIPES_GROUP}]\naxolotl = axolotl_recipe:Settings\n")
    monkeypatch.syspath_prepend(tmp_path)
    find_plugins.cache_clear()
    yield
    monkeypatch.undo()
    find_plugins.cache_clear()


def test_a_recipe_of_another_distribution_is_a_trainer_by_its_name(axolotl):
    request = build_request(
        backend=backend_class("kubernetes"),
        runtime="axolotl-llm",
        trainer={"axolotl": {"epochs": 3, "num_nodes": 2}},
        initializer=Initializer(dataset=HuggingFaceDatasetInitializer("hf://team/data")),
        options=[Name("job")],
    )
    request = TrainJobRequest.from_json(request.to_json())
    labels = {"trainer.kubeflow.org/framework": "axolotl"}
    runtime = build_torch_runtime(RuntimeParameters("axolotl-llm", image="axolotl:1", labels=labels))
    trainjob = manifest.render_trainjob(request, runtime, server(), "team")

    assert trainjob["spec"]["trainer"] == {
        "command": ["axolotl", "train"],
        "args": ["--num-epochs=3", "--data=hf://team/data"],
        "env": [{"name": "TRAINJOB_NAME", "value": "job"}],
        "numNodes": 2,
    }
    with pytest.raises(UnsupportedError, match="whose framework is torch; use a runtime of axolotl"):
        check_request(request, build_torch_runtime(RuntimeParameters("torch", image="i")), server(), "team")


def test_a_trainer_that_is_none_of_the_kinds_is_refused_with_what_it_has():
    with pytest.raises(ValueError, match="or the name of a recipe, such as trl; got epochs"):
        trainer_from_dict({"epochs": 3})
    with pytest.raises(ValueError, match="recipe 'tuna' is unknown; known are torchtune, trl"):
        find_recipe("tuna")


SFT = {"trl": {"method": "sft", "use_peft": True, "num_nodes": 2, "resources_per_node": {"gpu": 4}}}


def test_trl_runs_in_the_torchrun_of_the_runtime_that_has_its_label():
    runtime = build_trl_runtime(RuntimeParameters("trl-llm"))
    request = build_request(
        backend=backend_class("kubernetes"),
        runtime="trl-llm",
        trainer=SFT,
        initializer=Initializer(
            dataset=HuggingFaceDatasetInitializer("hf://team/data"),
            model=HuggingFaceModelInitializer("hf://team/model"),
        ),
        options=[Name("job"), Checkpoints(uri="s3://bucket/checkpoints", every_steps=100)],
    )
    check_request(request, runtime, server(), "team")
    trainjob = manifest.render_trainjob(request, runtime, server(), "team")

    container = runtimes.find_trainer_container(runtime)
    assert (container["command"], container["image"]) == (
        ["torchrun", "-m", "trl.scripts.sft"],
        "huggingface/trl:1.16.0",
    )
    assert runtime["metadata"]["labels"] == {"trainer.kubeflow.org/framework": "trl"}
    assert [crds.list_violations(each) for each in (runtime, trainjob)] == [[], []]
    assert trainjob["spec"]["trainer"]["args"][0] == "torchrun"
    payload = find_payload(trainjob)
    assert payload["args"]["sources"] == {"dataset": "hf://team/data", "model": "hf://team/model"}
    assert 'runpy.run_module(f"trl.scripts.{method}"' in payload["text"]


def test_a_runtime_of_trl_takes_functions_and_no_torchtune_recipe():
    runtime = build_trl_runtime(RuntimeParameters("trl-llm"))
    build = functools.partial(
        build_request, backend=backend_class("kubernetes"), runtime="trl-llm", options=[Name("job")]
    )
    check_request(build(trainer={"func": "train:main"}), runtime, server(), "team")
    with pytest.raises(UnsupportedError, match="whose framework is trl; use a runtime of torchtune"):
        check_request(build(trainer={"torchtune": {"epochs": 1}}), runtime, server(), "team")
