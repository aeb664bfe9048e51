"""Use the project in an environment with some extras, and check that a missing one is named: for check_extras.py."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import trainer_core
from trainer_core import (
    ContainerBackendConfig,
    CustomTrainer,
    HuggingFaceDatasetInitializer,
    Initializer,
    KubernetesBackendConfig,
    LocalProcessBackendConfig,
    OptunaSampler,
    RunaiBackendConfig,
    S3DatasetInitializer,
    TrainerClient,
    TrainerError,
    TrainingOperatorBackendConfig,
)
from trainer_core.model.config import BackendConfig

#: What the modules of a name need, by its beginning: the first that fits. All others import in every environment.
MODULES = {
    "trainer_core.cli.": "cli",
    "trainer_core.fetch.huggingface.": "huggingface",
    "trainer_core.fetch.s3.": "s3",
    "trainer_core.testing": "pytest",
    "airflow_provider.lineage_facets": "openlineage",
    "airflow_provider.testing": "pytest",
    "airflow_provider.": "airflow",
    "kfp_components.step": None,
    "kfp_components.": "kfp",
}
#: What needs an extra when it is used.
BACKENDS: list[tuple[str, BackendConfig]] = [
    ("containers", ContainerBackendConfig()),
    ("kubernetes", KubernetesBackendConfig()),
    ("kubernetes", RunaiBackendConfig(project="team")),
    ("kubernetes", TrainingOperatorBackendConfig()),
]
DATASETS: list[tuple[str, HuggingFaceDatasetInitializer | S3DatasetInitializer]] = [
    ("huggingface", HuggingFaceDatasetInitializer("hf://owner/name")),
    ("s3", S3DatasetInitializer("s3://bucket/data")),
]


def main(extras: set[str]) -> None:
    """Print what is wrong in this environment, and end with exit code 1 if something is."""
    if find_spec("typer"):
        extras = {*extras, "cli"}  # Airflow and mkdocs bring its packages.
    problems = [*_import_modules(extras), *_find_unnamed_extras(extras), *_use_command("cli" in extras)]
    if _train() != 6:
        problems.append("a local job has another result")
    if find_spec("torch"):
        problems.append("torch is installed")
    if problems:
        sys.exit("\n".join(problems))


def _import_modules(extras: set[str]) -> Iterator[str]:
    for name in dir(trainer_core):
        getattr(trainer_core, name)
    for package in map(import_module, ("trainer_core", "airflow_provider", "kfp_components")):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.", onerror=lambda name: None):
            extra = next((MODULES[each] for each in MODULES if module.name.startswith(each)), None)
            try:
                if not module.name.endswith("__main__"):
                    import_module(module.name)
            except ModuleNotFoundError as error:
                if extra is None or extra in extras:
                    yield f"{module.name} cannot be imported: {error}"


def _find_unnamed_extras(extras: set[str]) -> Iterator[str]:
    for extra, config in BACKENDS:
        yield from _check_refusal(partial(_list_jobs, config), extra, extra in extras)
    for extra, dataset in DATASETS:
        if extra not in extras:
            yield from _check_refusal(partial(_train, dataset), extra, False)
    if "search" not in extras:
        yield from _check_refusal(OptunaSampler, "search", False)


def _check_refusal(action: Callable[[], object], extra: str, is_installed: bool) -> Iterator[str]:
    """Check that an action is refused in one line; the line names the extra unless it is installed."""
    try:
        action()
        message = ""
    except (TrainerError, ValueError) as error:
        message = str(error)
    if ("pip install -e" in message) == is_installed or (f"[{extra}]" in message) == is_installed or "\n" in message:
        yield f"the extra {extra} is {'' if is_installed else 'not '}installed, but the error is: {message}"


def _list_jobs(config: BackendConfig) -> object:
    return TrainerClient(config).list_jobs()


def _train(dataset: HuggingFaceDatasetInitializer | S3DatasetInitializer | None = None) -> object:
    client = TrainerClient(LocalProcessBackendConfig())
    trainer = CustomTrainer(func=double, func_args={"number": 3})
    name = client.train(runtime="python", trainer=trainer, initializer=Initializer(dataset=dataset))
    return client.wait(name).result


def double(number: int) -> int:
    """Train nothing."""
    return 2 * number


def _use_command(is_installed: bool) -> Iterator[str]:
    program = Path(sys.executable).with_name("trainjob")
    for argument in ("--help", "list", "doctor"):
        done = subprocess.run([program, argument], capture_output=True, text=True, check=False)
        if is_installed != (done.returncode == 0) or is_installed == ("pip install -e '.[cli]'" in done.stderr):
            yield f"trainjob {argument} ends with {done.returncode}: {done.stderr}"


if __name__ == "__main__":
    main({*sys.argv[1].split(",")})
