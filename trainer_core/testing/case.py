"""What a backend under test is, and what all tests of the contract have in common."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from trainer_core.client import TrainerClient
from trainer_core.initializers import Initializer
from trainer_core.jobs import TrainJob
from trainer_core.observation import SUSPENDED
from trainer_core.options import Name
from trainer_core.request import Owner, TrainJobRequest
from trainer_core.testing.functions import returns
from trainer_core.trainers import CustomTrainer

__all__ = ["BackendCase", "Contract", "applies", "halted", "on_each", "reached", "where"]

#: Seconds to wait for what must happen; far more than it takes, so that a busy machine, or one that has to fetch an
#: image first, fails no test.
_PATIENCE = 180.0
#: Seconds between looks: at first, and at most.
_LOOK, _MAX_LOOK = 0.02, 0.5

_WHERE = "__trainjob_where__"
_OTHERS = "about-other-backends"
_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True)
class BackendCase:
    """A backend to prove, and the facts in which backends may differ.

    Each fact is tested both ways, and nothing else may differ.

    Attributes:
        name: Shown in the names of the tests.
        connect: Makes a client whose state lies in a folder; called again for the same folder, a client of the same.
        runtime: A runtime that runs a function in a plain Python process.
        outlives_its_client: Another client finds its jobs.
        runs_beside_its_client: `submit` returns before the job ends, so a job can be seen running, suspended and ended.
        ends_at_deadline: A job can be given a deadline.
        runs_every_node: A job of two nodes runs two processes.
        installs_packages: `packages_to_install` are installed.
        reads_this_machine: Its initializers fetch from this machine's folders.
        runs_bare_runtimes: A runtime is something to run, also without a trainer.
        image: What training runs in instead of the runtime's image: something with ``python3`` is enough.
    """

    name: str
    connect: Callable[[Path], TrainerClient]
    runtime: str = "python"
    outlives_its_client: bool = True
    runs_beside_its_client: bool = True
    ends_at_deadline: bool = True
    runs_every_node: bool = True
    installs_packages: bool = True
    reads_this_machine: bool = True
    runs_bare_runtimes: bool = False
    image: str | None = None


def where(**facts: bool | str | None) -> Callable[[_F], _F]:
    """Say that a test is about backends with these facts only; another one is about the others."""

    def mark(test: _F) -> _F:
        setattr(test, _WHERE, facts)
        return test

    return mark


def applies(test: Callable[..., Any], case: BackendCase) -> bool:
    """Say whether a test is about backends such as this one."""
    return all(getattr(case, fact) == value for fact, value in getattr(test, _WHERE, {}).items())


def on_each(cases: Sequence[BackendCase], metafunc: pytest.Metafunc) -> None:
    """Run a test on every backend that has the facts the test is about; call it in ``pytest_generate_tests``.

    A test that is about none of them is deselected.
    """
    if "case" not in metafunc.fixturenames:
        return
    fitting = [case for case in cases if applies(metafunc.function, case)]
    metafunc.parametrize("case", fitting or [None], ids=[case.name for case in fitting] or [_OTHERS])
    if not metafunc.config.pluginmanager.has_plugin(_OTHERS):
        metafunc.config.pluginmanager.register(_Others(), _OTHERS)


class _Others:
    """Leaves out what is about none of the backends at hand: where tests are made, they cannot be left out."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        config.hook.pytest_deselected(items=[item for item in items if _is_about_others(item)])
        items[:] = [item for item in items if not _is_about_others(item)]


def _is_about_others(item: Any) -> bool:
    return hasattr(item, "callspec") and item.callspec.params.get("case", item) is None


def reached(client: TrainerClient, name: str, status: str) -> TrainJob:
    """Wait until a job has a status, and return it as it is then."""
    job = _seen(client, name, lambda job: job.status == status)
    assert job.status == status  # noqa: S101 -- a test's helper
    return job


def halted(client: TrainerClient, name: str) -> TrainJob:
    """Wait until a job is suspended and nothing of it runs any more, and return it as it is then.

    One that is resumed before that may just go on: what is to suspend it never saw that it should.
    """
    job = _seen(client, name, lambda job: job.status == SUSPENDED and not _running(job))
    assert (job.status, _running(job)) == (SUSPENDED, [])  # noqa: S101 -- a test's helper
    return job


def _running(job: TrainJob) -> list[str]:
    return [step.pod_name for step in job.steps if step.pod_name]


def _seen(client: TrainerClient, name: str, wanted: Callable[[TrainJob], bool]) -> TrainJob:
    end, look = time.monotonic() + _PATIENCE, _LOOK
    while not wanted(job := client.get_job(name)) and time.monotonic() < end:
        time.sleep(look)
        look = min(_MAX_LOOK, 1.5 * look)
    return job


class Contract:
    """A part of the contract: fixtures, and how a test says what to run."""

    @pytest.fixture
    def client(self, case: BackendCase, tmp_path: Path) -> Iterator[TrainerClient]:
        """A client without jobs; those of the test are deleted after it."""
        client = case.connect(tmp_path / "state")
        yield client
        for job in client.list_jobs():
            client.delete_job(job.name)

    @pytest.fixture
    def ask(self, case: BackendCase, client: TrainerClient) -> Callable[..., TrainJobRequest]:
        """Builds requests: ``ask(func, {args}, name=, owner=, options=[], initializer=, **further trainer fields)``."""

        def ask(
            func: Callable[..., Any] = returns,
            args: dict[str, Any] | None = None,
            *,
            name: str | None = "job",
            owner: Owner | None = None,
            options: Sequence[Any] = (),
            initializer: Initializer | None = None,
            **fields: Any,
        ) -> TrainJobRequest:
            trainer = CustomTrainer(func=func, func_args=args, **{"image": case.image, **fields})
            named = [Name(name)] if name and owner is None else []
            return client.request(
                runtime=case.runtime, trainer=trainer, initializer=initializer, options=[*named, *options], owner=owner
            )

        return ask
