"""Random sequences of promotions, on a folder and on a real MLflow server, against a dictionary of champions."""

from __future__ import annotations

import http.client
import random
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

import pytest
from test_model_registry import promote_until_killed_in_child

from trainer_core.base.errors import TrackingError
from trainer_core.tracking.mlflow_api import MlflowApi
from trainer_core.tracking.mlflow_registry import MlflowRegistry
from trainer_core.tracking.model_registry import Candidate, FolderRegistry
from trainer_core.tracking.server import MlflowServer

ALIASES = ["champion", "champion-emea", "current"]
STEPS = ["promote"] * 5 + ["repeat", "repeat", "correct", "roll back", "remove", "kill"]


class Model(NamedTuple):
    """What a TrainJob has trained: its name may be that of others, and a TrainJob may have two."""

    job: str
    uid: str
    artifact: str
    value: float

    @property
    def content(self) -> str:
        return f"{self.uid} {self.artifact}"


class Decision(NamedTuple):
    min_delta: float
    promoted: bool
    before: float | None


class Champions:
    """What a registry answers: an alias names the best model that was promoted for it."""

    def __init__(self) -> None:
        self.of_alias: dict[str, Model] = {}
        self.decisions: dict[tuple[str, Model], Decision] = {}

    def promote(self, model: Model, alias: str, min_delta: float) -> Decision:
        known = self.decisions.get((alias, model))
        if known and (known.promoted or known.min_delta == min_delta):
            return known
        champion = self.of_alias.get(alias, model)
        gain = Decimal(str(model.value)) - Decimal(str(champion.value))
        promoted = champion is model or gain >= max(Decimal(str(min_delta)), Decimal("0.01"))
        before = None if champion is model else champion.value
        if promoted:
            self.of_alias[alias] = model
        self.decisions[alias, model] = Decision(min_delta, promoted, before)
        return self.decisions[alias, model]


class Folder:
    """A registry in a folder, and what only a folder does in a test."""

    def __init__(self, folder: Path) -> None:
        self.registry = FolderRegistry(folder)
        self.folder = folder

    def read(self, uri: str) -> dict[str, str]:
        files = Path(unquote(urlsplit(uri).path))
        return {path.relative_to(files).as_posix(): path.read_text() for path in files.rglob("*") if path.is_file()}

    def remove(self, model: str, alias: str) -> None:
        stem = {"champion": "current", "current": "@current"}.get(alias, alias)
        (self.folder / model / f"{stem}.json").unlink()

    def kill(self, numbers: random.Random, candidate: Candidate, **options: object) -> None:
        promote_until_killed_in_child(self.folder, candidate, numbers.randrange(1, 40), **options)

    def get_run(self, model: Model) -> None:
        return None


class Server:
    """A registry on an MLflow server, and what only a server does in a test."""

    def __init__(self, relay, ask) -> None:
        self.registry = MlflowRegistry(MlflowServer(relay.uri))
        self.api = MlflowApi(MlflowServer(relay.uri), 30.0)
        self.relay = relay
        self.ask = ask
        self.runs: dict[str, str] = {}

    def read(self, uri: str) -> dict[str, str]:
        root = uri.partition(":")[2].lstrip("/")
        connection = http.client.HTTPConnection(urlsplit(self.relay.uri).netloc, timeout=300)
        found = {}
        for name in ("weights.bin", "more/weights.bin"):
            connection.request("GET", f"/api/2.0/mlflow-artifacts/artifacts/{quote(f'{root}/{name}')}")
            found[name] = connection.getresponse().read().decode()
        connection.close()
        return found

    def remove(self, model: str, alias: str) -> None:
        self.ask("delete_alias", model=model, alias=alias)

    def kill(self, numbers: random.Random, candidate: Candidate, **options: object) -> None:
        left, when = [numbers.randrange(1, 12)], numbers.choice(["before", "after"])

        def cut(path: str) -> str | None:
            left[0] -= 1
            return when if left[0] <= 0 else None

        self.relay.cut = cut
        with suppress(TrackingError), MlflowRegistry(self.registry._api.server) as killed:
            killed.promote_candidate(candidate, **options)
        self.relay.cut = lambda path: None

    def get_run(self, model: Model) -> str:
        if model.uid not in self.runs:
            self.runs[model.uid] = self.api.create_run("0", model.job, {}, 1)
        return self.runs[model.uid]


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path / "registry")


@pytest.fixture
def server(relay, ask):
    playing = Server(relay, ask)
    yield playing
    playing.registry.close()
    playing.api.close()


def write_files(folder: Path, model: Model) -> str:
    """Write a model with a folder that is a link."""
    path = folder / f"{model.uid}-{model.artifact}"
    if not path.exists():
        (path.parent / f"{path.name}-more").mkdir()
        (path.parent / f"{path.name}-more" / "weights.bin").write_text(f"more of {model.content}")
        path.mkdir()
        (path / "weights.bin").write_text(model.content)
        (path / "more").symlink_to(path.parent / f"{path.name}-more")
    return path.as_uri()


class Game:
    """Random steps on a registry and on the model; the answer, the champions and the files are compared after each."""

    def __init__(self, target, folder: Path, seed: int) -> None:
        self.target, self.folder, self.name = target, folder, f"model-{seed}"
        self.numbers = random.Random(seed)  # noqa: S311 -- no secret
        self.champions = Champions()
        #: Content by version when it was first seen.
        self.contents: dict[str, dict[str, str]] = {}
        self.versions: dict[Model, str] = {}
        draw = self.numbers.choice
        values = [round(0.5 + number / 100, 2) for number in range(40)]
        self.models = [
            Model(draw(["nightly", "weekly"]), f"uid-{uid}", artifact, draw(values))
            for uid in range(6)
            for artifact in ("model", "decoder")
        ]

    def play(self, count: int) -> None:
        for number in range(count):
            step, alias, model = map(self.numbers.choice, (STEPS, ALIASES, self.models))
            print(number, step, alias, model)
            self.take(step, alias, model)
            self.compare()
        registered = self.target.registry.list_versions(self.name)
        assert {version.version: self.target.read(version.uri) for version in registered} == self.contents

    def take(self, step: str, alias: str, model: Model) -> None:
        decisions = self.champions.decisions
        refused = [key for key in decisions if not decisions[key].promoted]
        promoted = sorted({key[1] for key in decisions if decisions[key].promoted})
        match step:
            case "promote" | "kill":
                self.promote(model, alias, self.numbers.choice([0.0, 0.0, 0.05, 0.1]), is_killed=step == "kill")
            case "repeat" if decisions:
                alias, model = self.numbers.choice(list(decisions))
                self.promote(model, alias, decisions[alias, model].min_delta)
            case "correct" if refused:
                alias, model = self.numbers.choice(refused)
                self.promote(model, alias, 0.01 if decisions[alias, model].min_delta else 0.02)
            case "roll back" if promoted:
                self.champions.of_alias[alias] = self.numbers.choice(promoted)
                self.target.registry.rollback(self.name, self.versions[self.champions.of_alias[alias]], alias)
            case "remove" if alias in self.champions.of_alias:
                del self.champions.of_alias[alias]
                self.target.remove(self.name, alias)

    def promote(self, model: Model, alias: str, min_delta: float, *, is_killed: bool = False) -> None:
        candidate = Candidate(
            model.job, write_files(self.folder, model), "accuracy", model.value,
            uid=model.uid, run_id=self.target.get_run(model), artifact=model.artifact,
        )  # fmt: skip
        options = {"model": self.name, "alias": alias, "min_delta": min_delta}
        if is_killed:
            self.target.kill(self.numbers, candidate, **options)
        answer = self.target.registry.promote_candidate(candidate, **options)
        expected = self.champions.promote(model, alias, min_delta)
        assert (answer.promoted, answer.before) == (expected.promoted, expected.before)
        self.versions[model] = answer.version

    def compare(self) -> None:
        registered = self.target.registry.list_versions(self.name)
        found = {alias: version for version in registered for alias in version.aliases}
        expected = {alias: self.versions[model] for alias, model in self.champions.of_alias.items()}
        assert {alias: version.version for alias, version in found.items()} == expected
        for version in registered:
            if version.version not in self.contents:
                self.contents[version.version] = self.target.read(version.uri)
        for alias, model in self.champions.of_alias.items():
            content = {"weights.bin": model.content, "more/weights.bin": f"more of {model.content}"}
            assert self.target.read(found[alias].uri) == content


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("seed", range(8))
def test_a_folder_answers_as_the_model_whatever_the_sequence(folder, tmp_path, seed):
    Game(folder, tmp_path, seed).play(60)


@pytest.mark.parametrize("seed", [101, pytest.param(102, marks=pytest.mark.deep)])
def test_a_server_answers_as_the_model_whatever_the_sequence(server, tmp_path, seed):
    Game(server, tmp_path, seed).play(40)
