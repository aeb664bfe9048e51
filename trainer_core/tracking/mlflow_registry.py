"""The model registry of an MLflow server.

MLflow moves an alias without a condition, so the alias is derived from what is registered: each promoter registers its
version, computes the best of all versions, sets the alias, and reads again until the alias names the best. The last
one to write has read everything. While a promoter moves the alias, a tag of the registered model says so; an alias that
differs from the best version without such a tag was moved by a person, and is respected.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

from pydantic import BaseModel

from trainer_core.errors import InvalidRequestError, TrackingError
from trainer_core.tracking.mlflow_api import MlflowApi, SuppressCodes, Tag
from trainer_core.tracking.model_registry import (
    CHAMPION,
    Candidate,
    Comparison,
    Mode,
    ModelRegistry,
    ModelVersion,
    Promotion,
    get_local_path,
    is_better,
)
from trainer_core.tracking.server import MlflowServer

_JOB = "trainjob.version"
_METRIC = "trainjob.metric"
_MODE = "trainjob.mode"
_MIN_DELTA = "trainjob.min_delta"
_METRIC_NAME = "trainjob.metric_name"
_VERDICT = "trainjob.verdict"
#: Prefixes; the alias follows. What differs between aliases is kept for each alias.
_REPLACES = "trainjob.replaces."
_SCORE = "trainjob.score."
_PROMOTED = "trainjob.promoted."
_DEMOTED = "trainjob.demoted."
_MOVING = "trainjob.moving."
#: Experiment of the runs that hold the files of models without a run.
_EXPERIMENT = "trainjob-models"
_MAX_ROUNDS = 50
_TIMEOUT = 30.0
_TRIES = 5
_ALIAS = re.compile(r"(?!(?i:latest|v\d+)\Z)[\w-]+", re.ASCII)


class _ModelAlias(BaseModel):
    alias: str
    version: int


class _RegisteredModel(BaseModel):
    name: str
    aliases: list[_ModelAlias] = []
    tags: list[Tag] = []


class _RegisteredVersion(BaseModel):
    version: int
    source: str = ""
    tags: list[Tag] = []


@dataclass(frozen=True)
class _Version:
    number: int
    source: str
    tags: Mapping[str, str]

    @classmethod
    def parse(cls, registered: _RegisteredVersion) -> _Version:
        return cls(registered.version, registered.source, {each.key: each.value for each in registered.tags})

    @property
    def metric(self) -> float | None:
        try:
            return float(self.tags[_METRIC])
        except (KeyError, ValueError):
            return None

    def is_compared_by(self, value: float, comparison: Comparison, alias: str) -> bool:
        score = self.get_score(alias)
        return score is not None and score[0] == value and comparison.matches(score[1].metric, score[1].mode)

    def get_score(self, alias: str) -> tuple[float, Comparison] | None:
        """Return by what the version is compared for an alias; None if a person registered it."""
        try:
            tags = {**self.tags, **json.loads(self.tags.get(_SCORE + alias, "{}"))}
            mode: Mode = "min" if tags.get(_MODE) == "min" else "max"
            name, min_delta = tags.get(_METRIC_NAME, ""), float(tags.get(_MIN_DELTA, 0))
            return float(tags[_METRIC]), Comparison(name, mode, min_delta, _REPLACES + alias in tags)
        except (KeyError, ValueError, TypeError):
            return None


class MlflowRegistry(ModelRegistry):
    """The model registry of an MLflow server, by its REST API.

    Files of ``file://`` models are uploaded through the server. Other URIs stay where they are.
    """

    def __init__(self, server: MlflowServer) -> None:
        self._api = MlflowApi(server, _TIMEOUT)

    def close(self) -> None:
        self._api.close()

    def _promote(self, candidate: Candidate, model: str, comparison: Comparison, alias: str) -> Promotion:
        if not _ALIAS.fullmatch(alias):
            raise InvalidRequestError(
                f"MLflow takes no alias {alias!r}: use letters, digits, '_' and '-', and neither latest nor v1, v2, …"
            )
        own, versions = self._register(candidate, model, comparison, alias)
        verdict = self._decide(model, own, versions, alias)
        self._move_alias(model, alias, own.number, versions)
        uri = f"models:/{model}@{alias}"
        return Promotion(verdict["promoted"], str(own.number), uri, candidate.value, verdict["before"])

    def list_models(self) -> list[str]:
        call = partial(self._api.get, "registered-models/search")
        return sorted(each.name for each in self._api.list_all(call, "registered_models", _RegisteredModel))

    def list_versions(self, model: str) -> list[ModelVersion]:
        with SuppressCodes("RESOURCE_DOES_NOT_EXIST"):
            aliases, _ = self._get_model(model)
            return self._describe_versions(model, aliases)
        return []

    def _describe_versions(self, model: str, aliases: Mapping[str, int]) -> list[ModelVersion]:
        return [
            ModelVersion(
                str(each.number),
                each.source,
                each.metric,
                tuple(sorted(alias for alias, number in aliases.items() if number == each.number)),
                any(key.startswith(_DEMOTED) for key in each.tags),
            )
            for each in self._list_versions(model)
        ]

    def rollback(self, model: str, version: str, alias: str = CHAMPION) -> None:
        versions = self._list_versions(model)
        target = next((each for each in versions if str(each.number) == version), None)
        if target is None:
            known = ", ".join(str(each.number) for each in versions) or "none"
            raise InvalidRequestError(f"model {model!r} has no version {version!r}; its versions are {known}")
        self._set_alias(model, alias, target.number)
        self._respect_person(model, alias, versions, target, None)
        self._api.post("model-versions/delete-tag", "DELETE", name=model, version=version, key=_DEMOTED + alias)

    def has_origin_of(self, uri: str) -> bool:
        return self._api.server.has_origin_of(uri)

    def repair(self, model: str, alias: str = CHAMPION) -> None:
        for key in self._get_model(model)[1]:
            if key.startswith(_MOVING):
                self._api.post("registered-models/delete-tag", "DELETE", name=model, key=key)
        self._move_alias(model, alias, 0, self._list_versions(model))

    def _create_model(self, model: str) -> None:
        with SuppressCodes("RESOURCE_ALREADY_EXISTS"):
            self._api.post("registered-models/create", name=model)

    def _register(
        self, candidate: Candidate, model: str, comparison: Comparison, alias: str
    ) -> tuple[_Version, list[_Version]]:
        """Return the version of a candidate, created once, and all versions. Of a race, the lowest number stays."""
        versions = self._list_versions(model)
        found = _select_versions(versions, candidate)
        score = {
            _METRIC_NAME: candidate.metric,
            _METRIC: repr(candidate.value),
            _MODE: comparison.mode,
            _MIN_DELTA: repr(comparison.min_delta),
        }
        if found and found[0].is_compared_by(candidate.value, comparison, alias):
            replaces = {}
        else:
            replaces = _check_metric(versions, found, model, comparison, alias)
        if not found:
            run_id, source = self._store_files(candidate)
            tags = {_JOB: candidate.identity, "trainjob.name": candidate.job, **score, **replaces}
            versions = self._create_version(model, source, run_id, tags)
            found = _select_versions(versions, candidate)
        elif not found[0].is_compared_by(candidate.value, comparison, alias):
            for key, value in {_SCORE + alias: json.dumps(score), **replaces}.items():
                self._set_tag(model, found[0].number, key, value)
            versions = self._list_versions(model)
            found = _select_versions(versions, candidate)
        if not found:
            raise TrackingError(f"the version of {candidate.job!r} was deleted by another client; promote it again")
        for double in found[1:]:
            self._delete_version(model, double.number)
        doubles = {each.number for each in found[1:]}
        return found[0], [each for each in versions if each.number not in doubles]

    def _delete_version(self, model: str, number: int) -> None:
        with SuppressCodes("RESOURCE_DOES_NOT_EXIST"):
            self._api.post("model-versions/delete", "DELETE", name=model, version=str(number))

    def _create_version(self, model: str, source: str, run_id: str | None, tags: Mapping[str, str]) -> list[_Version]:
        entries = [{"key": key, "value": value} for key, value in tags.items()]
        # Two promoters can compute the same next number; the database refuses one of them.
        for attempt in range(_TRIES):
            try:
                self._api.post("model-versions/create", name=model, source=source, run_id=run_id, tags=entries)
                break
            except TrackingError as error:
                if attempt == _TRIES - 1:
                    raise
                if error.code == "RESOURCE_DOES_NOT_EXIST":
                    self._create_model(model)
                    continue
                if not error.transient:
                    raise
                time.sleep(random.uniform(0.05, 0.3))  # noqa: S311 -- no secret
                versions = self._list_versions(model)
                if any(each.tags.get(_JOB) == tags[_JOB] for each in versions):
                    return versions  # The answer was lost.
        return self._list_versions(model)

    def _store_files(self, candidate: Candidate) -> tuple[str | None, str]:
        """Return run and source of a version; files of this machine are uploaded below the run."""
        path = get_local_path(candidate.uri)
        if path is None:
            if candidate.uri.startswith("pvc://"):
                raise InvalidRequestError(
                    f"{candidate.uri} is in a volume claim, which readers of the registry cannot mount; let the "
                    "training write the model to s3://, gs:// or hf://"
                )
            return candidate.run_id, candidate.uri
        if not path.exists():
            raise InvalidRequestError(f"there is no model at {path}; promote where the files of the job are")
        run_id = candidate.run_id or self._create_file_run(candidate)
        artifact_uri = self._api.get_run(run_id).info.artifact_uri
        if not artifact_uri.startswith("mlflow-artifacts:"):
            raise InvalidRequestError(
                f"the MLflow server stores artifacts at {artifact_uri} and takes no uploads; let the training write "
                "the model to a URI such as s3://bucket/model"
            )
        root = artifact_uri.partition(":")[2].lstrip("/")
        files = [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]
        for file in files:
            self._api.upload(f"{root}/model/{file.relative_to(path if path.is_dir() else path.parent)}", file)
        return run_id, f"{artifact_uri}/model"

    def _create_file_run(self, candidate: Candidate) -> str:
        experiment = self._api.get_experiment_id(_EXPERIMENT)
        found = self._api.search_runs([experiment], f"tags.`{_JOB}` = '{candidate.identity}'")
        if found:
            return found[0].id
        run_id = self._api.create_run(experiment, candidate.job, {_JOB: candidate.identity}, int(time.time() * 1000))
        self._api.post("runs/update", run_id=run_id, status="FINISHED")
        return run_id

    def _decide(self, model: str, own: _Version, versions: list[_Version], alias: str) -> dict[str, Any]:
        """Return whether the version is better than all others, as decided when it was compared first."""
        stored = json.loads(own.tags.get(_VERDICT + "." + alias, "{}"))
        score = own.get_score(alias)
        name = score[1].metric if score else ""
        if stored and stored.get("metric_name", name) == name:
            return dict(stored)
        if self._detect_person(model, alias, versions, own.number):
            versions = self._list_versions(model)
        others = _find_best([each for each in versions if each.number != own.number], alias)
        best = _find_best(versions, alias)
        before = others.get_score(alias) if others else None
        is_comparable = before and score and score[1].matches(before[1].metric, before[1].mode)
        verdict = {
            "promoted": best is not None and best.number == own.number,
            "before": before[0] if before and is_comparable else None,
            "metric_name": name,
        }
        self._set_tag(model, own.number, _VERDICT + "." + alias, json.dumps(verdict))
        return verdict

    def _move_alias(self, model: str, alias: str, own: int, versions: list[_Version]) -> None:
        """Set the alias until it names the best of all versions that were read after it was set."""
        moving = f"{_MOVING}{alias}.{own}"
        for _ in range(_MAX_ROUNDS):
            aliases, tags = self._get_model(model)
            current, is_marked = aliases.get(alias), moving in tags
            if current is not None and all(each.number != current for each in versions):
                versions = self._list_versions(model)  # It was registered later.
            best = _find_best(versions, alias)
            # A version without a metric was registered by a person: then no promotion moves the alias.
            is_foreign = any(each.number == current and each.get_score(alias) is None for each in versions)
            if best is None or current == best.number or is_foreign:
                break
            if not is_marked:
                self._write("registered-models/set-tag", name=model, key=moving, value=str(best.number))
            self._set_alias(model, alias, best.number)
            versions = self._list_versions(model)
        else:
            raise TrackingError(f"alias {alias!r} of model {model!r} is moved by others repeatedly; promote it again")
        if best is not None and current == best.number and _PROMOTED + alias not in best.tags:
            self._set_tag(model, best.number, _PROMOTED + alias, "true")
        if is_marked:
            self._api.post("registered-models/delete-tag", "DELETE", name=model, key=moving)

    def _detect_person(self, model: str, alias: str, versions: list[_Version], own: int) -> bool:
        """Demote the versions from which a person has moved the alias back, and return whether there was one."""
        best = _find_best([each for each in versions if each.number != own], alias)
        if best is None or _PROMOTED + alias not in best.tags:
            return False
        # Read after the versions, and twice: a promoter that has just finished is no person.
        aliases, tags = self._get_model(model)
        number = aliases.get(alias)
        if number == best.number:
            return False
        later_aliases, later_tags = self._get_model(model)
        is_moving = any(key.startswith(_MOVING + alias) for key in (*tags, *later_tags))
        if is_moving or later_aliases.get(alias) != number:
            return False
        target = next((each for each in versions if each.number == number), None)
        if target is None and number is not None:
            return False
        self._respect_person(model, alias, versions, target, own)
        return True

    def _respect_person(
        self, model: str, alias: str, versions: list[_Version], target: _Version | None, own: int | None
    ) -> None:
        """Demote the versions that are better than the one to which a person has moved the alias; all, if to none."""
        champion = target.get_score(alias) if target else None
        for each in versions:
            score = each.get_score(alias)
            if score is None or each.number == own or (target and (champion is None or each.number == target.number)):
                continue
            if champion is None or is_better(score[0], champion[0], score[1].mode):
                self._set_tag(model, each.number, _DEMOTED + alias, "true")

    def _set_alias(self, model: str, alias: str, number: int) -> None:
        self._write("registered-models/alias", name=model, alias=alias, version=str(number))

    def _set_tag(self, model: str, number: int, key: str, value: str) -> None:
        self._write("model-versions/set-tag", name=model, version=str(number), key=key, value=value)

    def _write(self, path: str, **body: str) -> None:
        """Send what can be repeated. Two clients that write the same row at once make the server fail for one."""
        for attempt in range(_TRIES):
            try:
                self._api.post(path, **body)
                return
            except TrackingError as error:
                if "IntegrityError" not in str(error) or attempt == _TRIES - 1:
                    raise
            time.sleep(random.uniform(0.05, 0.3))  # noqa: S311 -- no secret

    def _get_model(self, model: str) -> tuple[dict[str, int], dict[str, str]]:
        """Return the aliases and the tags of a registered model."""
        answer = self._api.get("registered-models/get", name=model)
        found = self._api.parse(_RegisteredModel, answer["registered_model"])
        aliases = {each.alias: each.version for each in found.aliases}
        return aliases, {each.key: each.value for each in found.tags}

    def _list_versions(self, model: str) -> list[_Version]:
        quoted = model.replace("'", "''")
        call = partial(self._api.get, "model-versions/search", filter=f"name='{quoted}'")
        found = self._api.list_all(call, "model_versions", _RegisteredVersion)
        return sorted((_Version.parse(each) for each in found), key=lambda each: each.number)


def _select_versions(versions: list[_Version], candidate: Candidate) -> list[_Version]:
    return [each for each in versions if each.tags.get(_JOB) == candidate.identity]


def _check_metric(
    versions: list[_Version], own: list[_Version], model: str, comparison: Comparison, alias: str
) -> dict[str, str]:
    """Refuse another metric than that of the champion; return the tag of a version that replaces it."""
    best = _find_best([each for each in versions if each not in own], alias)
    score = best.get_score(alias) if best else None
    if score is None or comparison.matches(score[1].metric, score[1].mode):
        return {}
    if any(_PROMOTED + alias in each.tags for each in versions):
        comparison.check(model, alias, score[1].metric, score[1].mode)
    return {_REPLACES + alias: "true"}


def _find_best(versions: list[_Version], alias: str) -> _Version | None:
    """Return the best version: each must be better than those before it by its own `min_delta`, or replace them."""

    def choose(best: _Version | None, each: _Version) -> _Version | None:
        score, champion = each.get_score(alias), best.get_score(alias) if best else None
        if score is None or _DEMOTED + alias in each.tags:
            return best
        value, comparison = score
        if champion is None:
            return each
        if not comparison.matches(champion[1].metric, champion[1].mode):
            return each if comparison.replaces else best
        return each if is_better(value, champion[0], comparison.mode, comparison.min_delta) else best

    return reduce(choose, versions, None)
