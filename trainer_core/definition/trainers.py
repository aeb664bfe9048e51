"""Trainers: what a TrainJob runs. A Python function, a container image, or a packaged recipe."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trainer_core.base import resources, validation
from trainer_core.base.secrets import SecretRef, parse_secret, redact
from trainer_core.model.backend_names import DEFAULT_RECIPE
from trainer_core.model.recipe import Recipe, find_recipe, is_recipe
from trainer_core.packaging.project import CodePaths, check_code
from trainer_core.packaging.requirements_file import is_requirements_file

_PACKAGINGS = ("source", "reference", "cloudpickle")
_REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def _default_pip_index_urls() -> list[str]:
    """Read the environment when a trainer is created; with an empty list pip's own configuration applies."""
    return [url.strip() for url in os.environ.get("DEFAULT_PIP_INDEX_URLS", "").split(",") if url.strip()]


@dataclass
class CustomTrainer:
    """Run a Python function in every process of every node.

    Numbers and `func_args` may be given as strings: orchestrators render templates into them, and they are validated
    when the request is parsed.

    Args:
        func: The function, or its import path ``"package.module:function"``.
        func_args: Keyword arguments of the function: plain JSON values. The default is none.
        image: Container image (``spec.trainer.image``). The default is the runtime's image.
        packages_to_install: Requirements that pip installs before the function runs, such as ``["scikit-learn>=1.5"]``;
            the path of a ``requirements.txt``, ``pyproject.toml`` or ``uv.lock`` that lists them, relative to the
            folder of `code`; or a list of both. ``"name --index-url=URL"`` comes from this index only.
        pip_index_urls: Package indexes: the first is ``--index-url``, the others ``--extra-index-url``. The default is
            the environment variable ``DEFAULT_PIP_INDEX_URLS`` (comma-separated), else pip's own configuration.
        num_nodes: Number of nodes, at least 1 (``spec.trainer.numNodes``). The default is the runtime's number.
        resources_per_node: Kubernetes quantities by resource name (``spec.trainer.resourcesPerNode``), such as
            ``{"gpu": 4, "cpu": 5, "memory": "10G"}`` or ``{"mig-1g.5gb": 1}``. The default is the runtime's resources.
        env: Environment variables of the nodes (``spec.trainer.env``): strings, or a `SecretRef`. On a backend without
            Secrets, a variable with a `SecretRef` has its value from the environment of the process that submits.
        num_proc_per_node: Processes per node, at least 1 (``spec.trainer.numProcPerNode``, or an argument of torchrun
            since Trainer 2.2). The default is derived from the resources.
        packaging: How the function reaches the job: ``"source"``, the default; ``"reference"``, an import path that
            exists where it runs; ``"cloudpickle"``, which requires the same Python version there. A function given as
            an import path is always a reference.
        result_uri: Absolute path or ``file://`` URI of a JSON file for the result, of any size. The default is no file;
            the result is then limited to 4 KiB.
        code: Files that travel with the function: the folder of its project, or a list of paths and patterns such as
            ``["src", "configs/*.yaml"]``, relative to the working directory (in a definition file to that file, in
            Airflow to the DAG file); or a commit, ``"git+https://host/repository@<commit id>"``. A function that one of
            them defines, or ``"module:function"``, is imported from them where it trains. Left out is what
            ``.gitignore`` and ``.trainjobignore`` name. The default is none: the function stands alone.
        code_uri: Where the files of `code` go if they are too large for the arguments of a job:
            ``s3://<bucket>/<path>`` everywhere, with the ``AWS_*`` variables of the submitting process and of the
            trainer's `env`; ``file:///<folder>`` of this machine for local jobs and containers. Equal files are stored
            once. The default is ``code_uri`` of the backend's configuration, otherwise the backend's own place; a
            cluster has none.

    Raises:
        ValueError: An invalid value.

    Example:
        ```python
        trainer = CustomTrainer(func=train, func_args={"epochs": 3}, num_nodes=2, resources_per_node={"gpu": 1})
        TrainerClient().train(runtime="torch-distributed", trainer=trainer)
        ```
    """

    # Not in the repr: the address in it differs between processes, and Airflow would see a changed DAG at each parse.
    func: Callable[..., Any] | str = field(repr=False)
    func_args: dict[str, Any] | None = None
    image: str | None = None
    packages_to_install: list[str] | str | None = None
    pip_index_urls: list[str] = field(default_factory=_default_pip_index_urls)
    num_nodes: int | None = None
    resources_per_node: dict[str, Any] | None = None
    env: Mapping[str, str | SecretRef] | None = None
    num_proc_per_node: int | None = None
    packaging: Literal["source", "reference", "cloudpickle"] = "source"
    result_uri: str | None = None
    code: CodePaths | None = None
    code_uri: str | None = None

    def __post_init__(self) -> None:
        self._check_function()
        check_code(self.code)
        if self.code_uri is not None and not validation.is_placeholder(self.code_uri):
            validation.check_code_uri("code_uri", self.code_uri)
        if self.code_uri is not None and self.code is None:
            raise ValueError(
                "code_uri is the place of the files of code, and there is no code; give code='path/to/project', or "
                "leave code_uri out"
            )
        validation.check_mapping("func_args", self.func_args, "{'epochs': 3}")
        if not (isinstance(self.packages_to_install, str) and is_requirements_file(self.packages_to_install)):
            validation.check_packages("packages_to_install", self.packages_to_install)
        validation.check_index_urls("pip_index_urls", self.pip_index_urls)
        validation.check_image("image", self.image)
        validation.check_result_uri("result_uri", self.result_uri)
        _check_nodes(self)

    def _check_function(self) -> None:
        validation.check_one_of("packaging", self.packaging, _PACKAGINGS)
        is_reference = isinstance(self.func, str) and _REFERENCE.fullmatch(self.func)
        if not callable(self.func) and not is_reference:
            raise ValueError(f"func must be a function or 'package.module:function', got {redact(self.func)}")


@dataclass
class CustomTrainerContainer:
    """Run a container image on every node.

    Args:
        image: The image (``spec.trainer.image``). Its entry point runs; the options `TrainerCommand` and `TrainerArgs`
            replace it.
        num_nodes: Number of nodes, at least 1 (``spec.trainer.numNodes``). The default is the runtime's number.
        resources_per_node: Kubernetes quantities by resource name (``spec.trainer.resourcesPerNode``).
        env: Environment variables of the nodes (``spec.trainer.env``): strings, or a `SecretRef`. On a backend without
            Secrets, a variable with a `SecretRef` has its value from the environment of the process that submits.
        num_proc_per_node: Processes per node, at least 1. The default is derived from the resources.

    Raises:
        ValueError: An invalid value.

    Example:
        ```python
        TrainerClient().train(trainer=CustomTrainerContainer(image="ghcr.io/team/train:1.0", num_nodes=2))
        ```
    """

    image: str
    num_nodes: int | None = None
    resources_per_node: dict[str, Any] | None = None
    env: Mapping[str, str | SecretRef] | None = None
    num_proc_per_node: int | None = None

    def __post_init__(self) -> None:
        validation.check_string("image", self.image, "ghcr.io/team/train:1.0")
        validation.check_image("image", self.image)
        _check_nodes(self)


@dataclass
class BuiltinTrainer:
    """Train by the settings of a library, without a function.

    Args:
        config: Settings of the library: `TorchTuneConfig`, `TRLConfig`, or a recipe of another distribution.

    Raises:
        ValueError: Not the settings of a recipe.

    Example:
        ```python
        trainer = BuiltinTrainer(TorchTuneConfig(epochs=1, peft_config=LoraConfig(lora_rank=8)))
        TrainerClient().train(runtime="torchtune-llama3.2-1b", trainer=trainer)
        ```
    """

    config: Recipe

    def __post_init__(self) -> None:
        if not isinstance(self.config, Recipe):
            raise ValueError(
                "BuiltinTrainer config must be the settings of a recipe, such as a TorchTuneConfig, got "
                f"{type(self.config).__name__}"
            )


@dataclass
class ConfigTrainer(BuiltinTrainer):
    """Train by the settings of a library: the name that Kubeflow proposes for it (kubeflow/sdk#626).

    Args:
        config: Settings of the library, such as a `TRLConfig`.

    Example:
        ```python
        TrainerClient().train(runtime="trl-llm", trainer=ConfigTrainer(TRLConfig(method="dpo", beta=0.2)))
        ```
    """


def trainer_from_dict(data: Mapping[str, Any]) -> CustomTrainer | CustomTrainerContainer | BuiltinTrainer:
    """Build a trainer from plain data, as in a YAML file.

    Args:
        data: Fields of a CustomTrainer (with ``func``), a BuiltinTrainer (the name of a recipe with its settings:
            ``{"trl": {"method": "sft"}}``; torchtune's alone with ``config``) or a CustomTrainerContainer (with
            ``image``). A secret in ``env`` is written ``{"name": …, "key": …}``.

    Raises:
        ValueError: None of the three, an unknown field, or an invalid value.
    """
    if isinstance(data.get("env"), Mapping):
        data = {**data, "env": {name: parse_secret(value) for name, value in data["env"].items()}}
    if "func" in data:
        return CustomTrainer(**validation.known_fields(CustomTrainer, data))
    if "config" in data:
        config = validation.known_fields(BuiltinTrainer, data)["config"]
        return BuiltinTrainer(find_recipe(DEFAULT_RECIPE).from_dict(config) if isinstance(config, Mapping) else config)
    if "image" in data:
        return CustomTrainerContainer(**validation.known_fields(CustomTrainerContainer, data))
    name = next(iter(data), "")
    if len(data) == 1 and is_recipe(name):
        return BuiltinTrainer(find_recipe(name).from_dict(data[name]))
    fields = validation.list_names(data) or "no field"
    raise ValueError(
        f"trainer must have func (a function), image (a container) or the name of a recipe, such as trl; got {fields}"
    )


def _check_nodes(trainer: CustomTrainer | CustomTrainerContainer) -> None:
    """Check the fields that functions and images share."""
    for name in ("num_nodes", "num_proc_per_node"):
        value = getattr(trainer, name)
        if type(value).__name__ == "PipelineParameterChannel":
            raise ValueError(f"{name}: a parameter of a KFP pipeline is an input of the task: train_task({name}=…)")
        validation.check_count(name, value)
    resources.check_resources("resources_per_node", trainer.resources_per_node)
    validation.check_env("env", trainer.env)
