"""Trainers: what to run. A Python function, a container image, or a packaged recipe."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trainer_core import checks, resources, secrets
from trainer_core.secrets import SecretRef, secret_from
from trainer_core.torchtune import (
    DataFormat,
    DataType,
    LoraConfig,
    Loss,
    TorchTuneConfig,
    TorchTuneInstructDataset,
)

__all__ = [
    "BuiltinTrainer",
    "CustomTrainer",
    "CustomTrainerContainer",
    "DataFormat",
    "DataType",
    "LoraConfig",
    "Loss",
    "TorchTuneConfig",
    "TorchTuneInstructDataset",
    "trainer_from_dict",
]

_PACKAGINGS = ("source", "reference", "cloudpickle")
_REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def _default_pip_index_urls() -> list[str]:
    """Read when a trainer is made. None named: pip's own configuration, which a proxy or mirror is part of."""
    return [url.strip() for url in os.environ.get("DEFAULT_PIP_INDEX_URLS", "").split(",") if url.strip()]


@dataclass
class CustomTrainer:
    """Run a Python function on every process of every node.

    A text given for a number passes unread: orchestrators fill it in, and it is judged when the request is parsed.
    So are the values of `func_args`.

    Args:
        func: The function, or where to import it from as ``"package.module:function"``.
        func_args: Passed to it as keyword arguments. Plain JSON values.
        image: Container image; None for the runtime's own.
        packages_to_install: What pip installs before the function runs, such as ``["scikit-learn>=1.5"]``.
        pip_index_urls: Where from: the first is the index, the others are extra ones. By default the environment
            variable ``DEFAULT_PIP_INDEX_URLS`` (comma-separated), else what pip itself is configured with.
        num_nodes: How many nodes, at least 1; None for the runtime's own number.
        resources_per_node: Kubernetes quantities by resource name, such as ``{"gpu": 4, "cpu": 5, "memory": "10G"}``
            or ``{"mig-1g.5gb": 1}``.
        env: Environment variables of the nodes: texts, or on a cluster a `SecretRef`.
        num_proc_per_node: Processes on each node, at least 1; None to derive it from the resources.
        packaging: How the function travels: its ``"source"``, a ``"reference"`` to import where it runs, or a
            ``"cloudpickle"``, which needs the same Python there. A function given as text is always a reference.
        result_uri: Path or ``file://`` URI where the whole result is written as JSON, whatever its size.

    Raises:
        ValueError: An argument cannot be right.
    """

    # Its text form has an address, which no two processes share: Airflow would see a new DAG at each look.
    func: Callable[..., Any] | str = field(repr=False)
    func_args: dict[str, Any] | None = None
    image: str | None = None
    packages_to_install: list[str] | None = None
    pip_index_urls: list[str] = field(default_factory=_default_pip_index_urls)
    num_nodes: int | None = None
    resources_per_node: dict[str, Any] | None = None
    env: Mapping[str, str | SecretRef] | None = None
    num_proc_per_node: int | None = None
    packaging: Literal["source", "reference", "cloudpickle"] = "source"
    result_uri: str | None = None

    def __post_init__(self) -> None:
        self._check_function()
        checks.check_mapping("func_args", self.func_args, "{'epochs': 3}")
        checks.check_packages("packages_to_install", self.packages_to_install)
        checks.check_index_urls("pip_index_urls", self.pip_index_urls)
        if self.image is not None:
            checks.check_text("image", self.image, "ghcr.io/team/train:1.0")
        checks.check_result_uri("result_uri", self.result_uri)
        _check_nodes(self)

    def _check_function(self) -> None:
        checks.check_one_of("packaging", self.packaging, _PACKAGINGS)
        if not callable(self.func) and not _REFERENCE.fullmatch(str(self.func)):
            raise ValueError(f"func must be a function or 'package.module:function', got {self.func!r}")


@dataclass
class CustomTrainerContainer:
    """Run a container image as it is on every node.

    Args:
        image: The image. Its entry point is run; the options `TrainerCommand` and `TrainerArgs` replace it.
        num_nodes: How many nodes, at least 1; None for the runtime's own number.
        resources_per_node: Kubernetes quantities by resource name.
        env: Environment variables of the nodes: texts, or on a cluster a `SecretRef`.
        num_proc_per_node: Processes on each node, at least 1; None to derive it from the resources.

    Raises:
        ValueError: An argument cannot be right.
    """

    image: str
    num_nodes: int | None = None
    resources_per_node: dict[str, Any] | None = None
    env: Mapping[str, str | SecretRef] | None = None
    num_proc_per_node: int | None = None

    def __post_init__(self) -> None:
        checks.check_text("image", self.image, "ghcr.io/team/train:1.0")
        _check_nodes(self)


@dataclass
class BuiltinTrainer:
    """Run a recipe that the runtime brings.

    Args:
        config: The recipe's settings.

    Raises:
        ValueError: Not a recipe's settings.
    """

    config: TorchTuneConfig

    def __post_init__(self) -> None:
        if not isinstance(self.config, TorchTuneConfig):
            raise ValueError(f"BuiltinTrainer config must be a TorchTuneConfig, got {type(self.config).__name__}")


def trainer_from_dict(data: Mapping[str, Any]) -> CustomTrainer | CustomTrainerContainer | BuiltinTrainer:
    """Build a trainer from its fields as plain data, as a YAML file holds them.

    Args:
        data: With ``func`` a CustomTrainer, with ``config`` a BuiltinTrainer, else with ``image`` a
            CustomTrainerContainer. A secret in ``env`` is given as ``{"name": …, "key": …}``.

    Raises:
        ValueError: None of the three, an unknown field, or a value that the constructor refuses.
    """
    if isinstance(data.get("env"), Mapping):
        data = {**data, "env": {name: secret_from(value) for name, value in data["env"].items()}}
    if "func" in data:
        return CustomTrainer(**checks.known_fields(CustomTrainer, data))
    if "config" in data:
        config = checks.known_fields(BuiltinTrainer, data)["config"]
        return BuiltinTrainer(TorchTuneConfig.from_dict(config) if isinstance(config, Mapping) else config)
    if "image" in data:
        return CustomTrainerContainer(**checks.known_fields(CustomTrainerContainer, data))
    given = ", ".join(str(name) for name in data) or "nothing"
    raise ValueError(f"a trainer needs func (a function), config (a recipe) or image (a container); got {given}")


def _check_nodes(trainer: CustomTrainer | CustomTrainerContainer) -> None:
    """What a function and an image have in common."""
    checks.check_count("num_nodes", trainer.num_nodes)
    checks.check_count("num_proc_per_node", trainer.num_proc_per_node)
    resources.check_resources("resources_per_node", trainer.resources_per_node)
    secrets.check_env("env", trainer.env)
