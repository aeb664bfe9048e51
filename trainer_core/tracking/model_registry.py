"""Model registries: versions of a model, and an alias that names the best one.

`open_registry` returns the registry of a URI: a folder, or an MLflow server. Both register the model of a TrainJob and
move the alias to it only if it is better, give the same answer when asked again, and respect a person's rollback.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import shutil
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from trainer_core.base import naming, validation
from trainer_core.base.errors import InvalidRequestError
from trainer_core.base.secrets import redact
from trainer_core.model.jobs import Outcome
from trainer_core.node import artifact_stamps, locks

_log = logging.getLogger(__name__)
CHAMPION = "champion"
#: The artifact that is the model where none is named.
ARTIFACT = "model"
Mode = Literal["max", "min"]
#: Name of a metric of which only the value is known.
_UNNAMED = "metric"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
#: File of an alias where it is not the alias's name.
_ALIASES = {"current": CHAMPION, "@current": "current"}
#: What records which model a version is of.
_RECORDS = ("versions/*.json", "decisions/*.json", "*.json")


@dataclass(frozen=True)
class Promotion:
    """What `promote` did. The same for each repetition.

    Attributes:
        promoted: Whether this call, or an earlier try of it, moved the alias to this model.
        version: Version of this model in the registry.
        uri: URI of the model that the alias names now: ``models:/<model>@<alias>``, or ``file://…`` of a folder.
        metric: Value of the metric of this model.
        before: Value of the metric of the model that it was compared with. None for the first model.
    """

    promoted: bool
    version: str
    uri: str
    metric: float
    before: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the promotion as plain JSON data."""
        return asdict(self)


@dataclass(frozen=True)
class ModelVersion:
    """One version of a model.

    Attributes:
        version: Its version.
        uri: Where its files are.
        metric: Value of the metric with which it was registered. None if it was registered otherwise.
        aliases: Aliases that name it.
        demoted: Whether a person has taken it back. Then no alias is moved to it.
    """

    version: str
    uri: str
    metric: float | None = None
    aliases: tuple[str, ...] = ()
    demoted: bool = False


@dataclass(frozen=True)
class Candidate:
    """A model that may be promoted.

    Attributes:
        job: Name of the TrainJob that trained it, or another text that identifies the model.
        uri: Where its files are.
        metric: Name of the metric.
        value: Value of the metric.
        metrics: All metrics, recorded with the version.
        uid: Identity of the TrainJob. Default: that of the name and the value.
        run_id: Its MLflow run. None if it has none.
        artifact: Name of the job's artifact that is the model: each is a version of its own. Default ``model``.
        stamp: What the outcome of the job has in `Outcome.stamps` for it. None if it has none.
        finished_at: When the job ended: without a stamp, files that were written later are refused. None if unknown.
    """

    job: str
    uri: str
    metric: str
    value: float
    metrics: Mapping[str, float] | None = None
    uid: str | None = None
    run_id: str | None = None
    artifact: str = ARTIFACT
    stamp: str | None = None
    finished_at: str | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise InvalidRequestError(
                f"metric is {self.value}, which no other value is better or worse than; give a finite number"
            )

    @classmethod
    def from_outcome(cls, outcome: Outcome, metric: str, artifact: str, run_id: str | None = None) -> Candidate:
        """Return the model of a TrainJob by its artifact and metric; refuse a failed job, or one without them."""
        name = outcome.job.name
        if not outcome.succeeded:
            raise InvalidRequestError(f"TrainJob {name!r} is Failed and has no model to promote")
        if metric not in outcome.metrics:
            known = ", ".join(sorted(outcome.metrics)) or "none"
            note = f" ({outcome.result_note})" if outcome.result_note else ""  # It names what is no finite number.
            raise InvalidRequestError(f"TrainJob {name!r} reported no metric {metric!r}; it reported {known}{note}")
        if artifact not in outcome.artifacts:
            known = ", ".join(sorted(outcome.artifacts)) or "none"
            raise InvalidRequestError(
                f"TrainJob {name!r} has no artifact {artifact!r}, only {known}; let the training function return "
                f"{{'artifacts': {{{artifact!r}: uri}}}}"
            )
        uri, value = outcome.artifacts[artifact], outcome.metrics[metric]
        stamp = (outcome.stamps or {}).get(artifact)
        uid, finished = outcome.job.uid, outcome.finished_at
        return cls(name, uri, metric, value, outcome.metrics, uid, run_id, artifact, stamp, finished)

    def check_files(self) -> None:
        """Refuse the model if its files are not those that its TrainJob left, as far as this process can read them."""
        if self.stamp is None and self.finished_at is None:
            return
        try:
            problem = artifact_stamps.find_change(self.uri, self.stamp, self.finished_at)
        except OSError as error:
            _log.warning("artifact %r of TrainJob %r is promoted unchecked: %s", self.artifact, self.job, error)
            return
        if problem:
            raise InvalidRequestError(
                f"artifact {self.artifact!r} of TrainJob {self.job!r}: {problem}; train again, and let each training "
                "write to its own place"
            )

    @property
    def identity(self) -> str:
        """What tells this model from others: a later job of the same name, or another artifact of the job."""
        job = self.uid or hashlib.sha256(f"{self.job}/{self.value!r}".encode()).hexdigest()[:32]
        return job if self.artifact == ARTIFACT else f"{job}/{self.artifact}"


@dataclass(frozen=True)
class Comparison:
    """By what a model is compared with the champion; `replaces` allows that the champion was compared otherwise."""

    metric: str
    mode: Mode
    min_delta: float
    replaces: bool

    def matches(self, metric: str | None, mode: str | None) -> bool:
        """Return whether the champion was compared by the same metric. One without a name has any."""
        names = {self.metric, metric or _UNNAMED} - {_UNNAMED}
        return len(names) <= 1 and (mode or self.mode) == self.mode

    def check(self, model: str, alias: str, metric: str | None, mode: str | None) -> None:
        """Refuse the comparison with a champion of another metric, unless it is to be replaced."""
        if not self.replaces and not self.matches(metric, mode):
            raise InvalidRequestError(
                f"alias {alias!r} of model {model!r} compares {metric or self.metric} ({mode or self.mode}), and "
                f"{self.metric} ({self.mode}) was given; pass the same, or replace_metric=True to compare this one"
            )


class ModelRegistry(AbstractContextManager["ModelRegistry"]):
    """Versions of models, and aliases that name the best ones. A context manager; `close` closes its connection."""

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. The next call opens another one."""

    def promote(
        self,
        outcome: Outcome,
        *,
        model: str,
        metric: str,
        mode: Mode = "max",
        min_delta: float = 0.0,
        alias: str = CHAMPION,
        artifact: str = ARTIFACT,
        run_id: str | None = None,
        replace_metric: bool = False,
    ) -> Promotion:
        """Register the model of a TrainJob, and move the alias to it if it is better than the model that has the alias.

        Repeating it changes nothing and returns the same. Any number of processes may promote at the same time, and may
        be killed at any moment: once each call was repeated, the alias names the best model.

        Example:
            ```python
            with open_registry("https://mlflow.example") as registry:
                registry.promote(outcome, model="digits", metric="accuracy")
            ```

        Args:
            outcome: Outcome of the TrainJob.
            model: Name of the model.
            metric: Name of the metric by which models are compared.
            mode: ``max`` (default): the largest value is best; ``min``: the smallest.
            min_delta: By how much the metric must be better, as decimals: 0.85 is better than 0.80 by 0.05. Default 0:
                any difference counts. A model that was not promoted is compared again with another `min_delta`.
            alias: The alias. Default ``champion``.
            artifact: Name of the job's artifact that is the model. Default ``model``.
            run_id: MLflow run of the TrainJob. None (the default) for none.
            replace_metric: True to promote the model although the alias compares another metric or mode, and to
                compare this one from now on. Default False: refused.

        Raises:
            InvalidRequestError: The job failed or lacks the metric or artifact, an argument is invalid, or the alias
                compares another metric.
            TrackingError: The registry cannot be reached, or refuses.
        """
        candidate = Candidate.from_outcome(outcome, metric, artifact, run_id)
        return self.promote_candidate(
            candidate, model=model, mode=mode, min_delta=min_delta, alias=alias, replace_metric=replace_metric
        )

    def promote_candidate(
        self,
        candidate: Candidate,
        *,
        model: str,
        mode: Mode = "max",
        min_delta: float = 0.0,
        alias: str = CHAMPION,
        replace_metric: bool = False,
    ) -> Promotion:
        """Promote a model that is not described by an outcome. Otherwise as `promote`.

        Args:
            candidate: The model.
            model: Name of the model.
            mode: ``max`` (default) or ``min``.
            min_delta: By how much the metric must be better. Default 0.
            alias: The alias. Default ``champion``.
            replace_metric: Whether the alias may compare another metric or mode. Default False.

        Raises:
            InvalidRequestError: An argument is invalid, or the alias compares another metric.
            TrackingError: The registry cannot be reached, or refuses.
        """
        if mode not in ("max", "min"):
            raise InvalidRequestError(f"mode must be max or min, got {redact(mode)}")
        if not 0 <= min_delta < math.inf:
            raise InvalidRequestError(f"min_delta must be a number of at least 0, got {min_delta}")
        _check_name("alias", alias)
        return self._promote(candidate, model, Comparison(candidate.metric, mode, min_delta, replace_metric), alias)

    @abstractmethod
    def _promote(self, candidate: Candidate, model: str, comparison: Comparison, alias: str) -> Promotion:
        """Promote; the arguments are valid."""

    @abstractmethod
    def list_models(self) -> list[str]:
        """Return the names of the models."""

    @abstractmethod
    def list_versions(self, model: str) -> list[ModelVersion]:
        """Return the versions of a model, oldest first; empty if the model does not exist.

        Args:
            model: Name of the model.
        """

    @abstractmethod
    def rollback(self, model: str, version: str, alias: str = CHAMPION) -> None:
        """Move the alias back to a version. Later promotions are compared with that version.

        Args:
            model: Name of the model.
            version: The version.
            alias: The alias. Default ``champion``.

        Raises:
            InvalidRequestError: The model has no such version.
        """

    def repair(self, model: str, alias: str = CHAMPION) -> None:
        """Move the alias to the best version, after a promoter was killed and its task will not be repeated.

        Args:
            model: Name of the model.
            alias: The alias. Default ``champion``.
        """

    def has_origin_of(self, uri: str) -> bool:
        """Return whether runs of a tracking URI are on the server of this registry."""
        return False

    def get_champion(self, model: str, alias: str = CHAMPION) -> ModelVersion | None:
        """Return the version that the alias names; None if there is none.

        Args:
            model: Name of the model.
            alias: The alias. Default ``champion``.
        """
        return next((each for each in self.list_versions(model) if alias in each.aliases), None)


class FolderRegistry(ModelRegistry):
    """A registry in a folder of one machine.

        <folder>/<model>/versions/<version>/    each promoted model, which never changes
        <folder>/<model>/versions/<version>.json  its metric, job and number
        <folder>/<model>/current.json           the model that the alias champion names; replaced atomically
        <folder>/<model>/<alias>.json           the same of another alias; @current.json of the alias current
        <folder>/<model>/decisions/             the answer for each model that was ever compared
        <folder>/<model>/lock                   held during comparison and promotion

    Needs a file system with locks between all processes that promote: a local disk.

    Args:
        folder: The folder. The model with the empty name is the folder itself.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _promote(self, candidate: Candidate, model: str, comparison: Comparison, alias: str) -> Promotion:
        folder = self._get_folder(model)
        source = get_local_path(candidate.uri)
        if source is not None and not source.exists():
            raise InvalidRequestError(f"there is no model at {source}; promote where the files of the job are")
        with _lock_folder(folder):
            version = _choose_version(folder, candidate)
            current = _read_current(folder, alias)
            decision = _read_decision(folder, version, alias)
            is_current = current.get("version") == version
            # A promoter that was killed before it moved the alias has decided nothing: a better model may have it now.
            is_final = _is_decided(decision, candidate, comparison) and (decision.get("done") or is_current)
            if is_final:
                promoted, before = decision["promoted"], decision["before"]
            else:
                comparison.check(model, alias, current.get("metric_name"), current.get("mode"))
                if source is None or not (folder / "versions" / f"{version}.json").exists():
                    candidate.check_files()
                is_comparable = comparison.matches(current.get("metric_name"), current.get("mode"))
                before = current.get("metric") if is_comparable and not is_current else None
                promoted = is_current or is_better(candidate.value, before, comparison.mode, comparison.min_delta)
            # A repetition of a promotion that was completed must not take the place of a better or rolled-back model.
            if not (is_final and decision.get("done")):
                score = {**_describe(candidate), "mode": comparison.mode}
                decision = {**score, "version": version, "min_delta": comparison.min_delta}
                decision |= {"promoted": promoted, "before": before}
                path = _get_decision_path(folder, version, alias)
                if promoted:
                    _write_json(path, decision)
                    record = self._store_version(folder, version, candidate, source, comparison.mode)
                    _write_json(_get_alias_path(folder, alias), {**record, **score})
                _write_json(path, {**decision, "done": True})
            current = _read_current(folder, alias)
        return Promotion(promoted, version, _get_entry_uri(folder, current), candidate.value, before)

    def list_models(self) -> list[str]:
        found = [path.parent.name for path in self._folder.glob("*/versions")]
        return sorted(found + ([""] if (self._folder / "versions").is_dir() else []))

    def list_versions(self, model: str) -> list[ModelVersion]:
        folder = self._get_folder(model)
        entries = [_read_json(path) for path in folder.glob("versions/*.json")]
        aliases: dict[str, list[str]] = {}
        for path in folder.glob("*.json"):
            alias = _ALIASES.get(path.stem, path.stem)
            aliases.setdefault(_read_current(folder, alias)["version"], []).append(alias)
        return [
            ModelVersion(
                each["version"],
                _get_entry_uri(folder, each),
                each["metric"],
                tuple(sorted(aliases.get(each["version"], ()))),
            )
            for each in sorted(entries, key=lambda each: (each.get("number", 0), each["version"]))
        ]

    def read_entry(self, model: str = "", alias: str = CHAMPION) -> dict[str, Any]:
        """Return what is recorded of the version that the alias names: version, metric, path; empty if there is none.

        Args:
            model: Name of the model. Default: the folder itself.
            alias: The alias. Default ``champion``.
        """
        return _read_current(self._get_folder(model), alias)

    def rollback(self, model: str, version: str, alias: str = CHAMPION) -> None:
        folder = self._get_folder(model)
        with _lock_folder(folder):
            record = _read_json(folder / "versions" / f"{_check_name('version', version)}.json")
            if not record:
                known = ", ".join(each.version for each in self.list_versions(model)) or "none"
                raise InvalidRequestError(f"model {model!r} has no version {version!r}; its versions are {known}")
            # By what it was compared for this alias, if it was.
            decision = _read_decision(folder, version, alias)
            score = {key: value for key, value in decision.items() if key in ("metric", "metric_name", "mode")}
            _write_json(_get_alias_path(folder, alias), {**record, **score})

    def _store_version(
        self, folder: Path, version: str, candidate: Candidate, source: Path | None, mode: Mode
    ) -> dict[str, Any]:
        """Return the record of a version, which is written once, after its files."""
        record_path = folder / "versions" / f"{version}.json"
        record = _read_json(record_path)
        if record:
            return record
        record = {"version": version, "mode": mode, **_describe(candidate)}
        if source is None:
            record["uri"] = candidate.uri
        else:
            # Without a record, what lies there is of a promoter that was killed.
            for left in (folder / "versions" / version, *folder.glob("versions/.*")):
                remove_path(left)
            aside = folder / "versions" / f".{version}"
            copy_path(source, aside / source.name, candidate.check_files)
            aside.replace(folder / "versions" / version)
            record["path"] = str(Path("versions", version, source.name))
        if candidate.metrics:
            record["metrics"] = dict(candidate.metrics)
        known = [_read_json(path).get("number", 0) for path in folder.glob("versions/*.json")]
        record["number"] = max(known, default=0) + 1
        _write_json(record_path, record)
        return record

    def _get_folder(self, model: str) -> Path:
        return self._folder / _check_name("model", model) if model else self._folder


def is_better(value: float, champion: float | None, mode: Mode, min_delta: float = 0.0) -> bool:
    """Return whether a metric is better than that of the champion by more than nothing, and by at least `min_delta`."""
    if champion is None:
        return True
    # Decimals as they are written: as floats, 0.85 - 0.8 is less than 0.05.
    difference = Decimal(str(value)) - Decimal(str(champion))
    if mode == "min":
        difference = -difference
    return difference > 0 and difference >= Decimal(str(min_delta))


def get_local_path(uri: str) -> Path | None:
    """Return the path of a ``file://`` URI or a path; None for another URI."""
    if "://" not in uri:
        return Path(uri)
    parts = urlsplit(uri)
    return Path(unquote(parts.path)) if parts.scheme == "file" and parts.netloc in ("", "localhost") else None


def copy_path(source: Path, target: Path, check: Callable[[], object] = bool) -> None:
    """Copy a file or folder; the target is whole or absent, and its former content is gone.

    Links are copied as the files and folders that they lead to. The check raises if the source has changed meanwhile.
    """
    list_files(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        if source.is_dir():
            # Contents only: what lies in an initializer's cache is read-only.
            shutil.copytree(source, temporary, copy_function=shutil.copyfile)
        else:
            shutil.copyfile(source, temporary)
        check()
        remove_path(target)
        temporary.replace(target)
    finally:
        remove_path(temporary)


def list_files(source: Path) -> dict[str, Path]:
    """Return the files of a model by their path in it, also those behind links; refuse what is no file or folder."""
    found: dict[str, Path] = {}

    def visit(path: Path, name: str, parents: tuple[Path, ...]) -> None:
        real = path.resolve()
        if path.is_dir() and real not in parents:
            for each in sorted(path.iterdir()):
                visit(each, f"{name}/{each.name}" if name else each.name, (*parents, real))
        elif path.is_file():
            found[name or path.name] = path
        else:
            what = "a link to a folder above it" if real in parents else "a broken link"
            what = "neither a file nor a folder" if path.exists() and real not in parents else what
            raise InvalidRequestError(f"{path} is {what}; let the training write the file itself, or remove it")

    visit(source, "", ())
    return found


def remove_path(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _choose_version(folder: Path, candidate: Candidate) -> str:
    """Return the version that is of this model, or a name for it: that of its job unless another model has it."""
    taken = set()
    for path in (each for pattern in _RECORDS for each in sorted(folder.glob(pattern))):
        record = _read_json(path)
        if "version" in record and _is_same_model(record, candidate):
            return str(record["version"])
        taken.add(record.get("version"))
    name = candidate.job if _NAME.fullmatch(candidate.job) else _hash(candidate.job, 16)
    return f"{name[:54]}-{_hash(candidate.identity, 8)}" if name in taken else name


def _hash(text: str, length: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def _describe(candidate: Candidate) -> dict[str, Any]:
    described = {"metric": candidate.value, "metric_name": candidate.metric, "uid": candidate.uid}
    if candidate.artifact != ARTIFACT:
        described["artifact"] = candidate.artifact
    return described


def _is_same_model(record: Mapping[str, Any], candidate: Candidate) -> bool:
    """Return whether a version or decision is of this model. One without a uid is known by its job and its metric."""
    if record.get("artifact", ARTIFACT) != candidate.artifact:
        return False
    if record.get("uid") and candidate.uid:
        return bool(record["uid"] == candidate.uid)
    return record["version"] in (candidate.job, _hash(candidate.job, 16)) and _is_of(record, candidate)


def _is_decided(decision: Mapping[str, Any], candidate: Candidate, comparison: Comparison) -> bool:
    """Return whether the model was compared in this way. A larger or smaller `min_delta` may correct a refusal."""
    is_same_mode = decision.get("mode", comparison.mode) == comparison.mode
    is_refusal = not decision.get("promoted", True)
    is_corrected = is_refusal and decision.get("min_delta", comparison.min_delta) != comparison.min_delta
    return _is_of(decision, candidate) and is_same_mode and not is_corrected


def _is_of(entry: Mapping[str, Any], candidate: Candidate) -> bool:
    """Return whether a decision or version is of this model by this metric.

    A model that is promoted by its files has no uid, and its metric may have no name.
    """
    names = {entry.get("metric_name") or _UNNAMED, candidate.metric} - {_UNNAMED}
    uids = {entry.get("uid"), candidate.uid} - {None}
    return entry.get("metric") == candidate.value and len(names) <= 1 and len(uids) <= 1


def build_partition_alias(alias: str, partition: str | None) -> str:
    """Return the alias that names the best version of a partition, such as ``champion-emea``; without one, the alias.

    Example:
        ```python
        registry.get_champion("sales", build_partition_alias("champion", "emea"))
        ```

    Args:
        alias: The alias, such as ``champion``.
        partition: Key of the partition. None for none.

    Raises:
        ValueError: The key is empty or too long.
    """
    if partition is None:
        return alias
    return f"{alias}-{naming.build_partition_slug(validation.check_partition(partition))}"


def _check_name(what: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidRequestError(f"{what} must be letters, digits, '-', '_' and '.', at most 63; got {redact(name)}")
    return name


def _get_alias_path(folder: Path, alias: str) -> Path:
    stem = next((stem for stem, name in _ALIASES.items() if name == alias), _check_name("alias", alias))
    return folder / f"{stem}.json"


def _get_decision_path(folder: Path, version: str, alias: str) -> Path:
    return folder / "decisions" / f"{version}@{alias}.json"


def _read_decision(folder: Path, version: str, alias: str) -> dict[str, Any]:
    # Registries of earlier releases have the second form.
    decision = _read_json(_get_decision_path(folder, version, alias))
    return decision or _read_json(folder / "decisions" / f"{alias}-{version}.json")


def _get_entry_uri(folder: Path, entry: Mapping[str, Any]) -> str:
    if not entry:
        return ""
    return str(entry["uri"]) if "uri" in entry else (folder / entry["path"]).absolute().as_uri()


def _read_current(folder: Path, alias: str) -> dict[str, Any]:
    path = _get_alias_path(folder, alias)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError:
        data = None
    if not isinstance(data, dict) or not data.keys() >= {"version", "metric"} or not data.keys() & {"path", "uri"}:
        raise InvalidRequestError(f"{path} is not that of a registry; give promote a separate folder")
    return data


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    temporary.write_text(json.dumps(data), encoding="utf-8")
    temporary.replace(path)


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = locks.acquire(folder / "lock", mode=0o666)  # Users of a group may share a registry.
    except OSError as error:
        raise InvalidRequestError(
            f"registry {folder} cannot be written: {error.strerror or error}; name a folder that this process may "
            "write to, on a volume that is mounted here"
        ) from error
    try:
        yield
    finally:
        locks.release(lock)
