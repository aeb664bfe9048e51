"""The model registry of an MLflow server.

MLflow moves an alias without a condition, so the alias is derived from what is registered: each promoter gives its
version a score for the alias, computes the best of all versions that have one, sets the alias, and reads again until
the alias names the best. The last one to write has read everything. While a promoter moves the alias, a tag of the
registered model says so; an alias that differs from the best version without such a tag was moved by a person, and is
respected.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote

from pydantic import BaseModel

from trainer_core.base.errors import InvalidRequestError, TrackingError
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
    list_files,
)
from trainer_core.tracking.server import MlflowServer

_JOB = "trainjob.version"
_METRIC = "trainjob.metric"
_MODE = "trainjob.mode"
_MIN_DELTA = "trainjob.min_delta"
_METRIC_NAME = "trainjob.metric_name"
_ORDER = "trainjob.order"
_VERDICT = "trainjob.verdict"
#: Prefixes; the alias follows. Earlier releases gave a version one score for all aliases, and a verdict for each.
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

    def get_score(self, alias: str) -> _Score | None:
        """Return by what the version is compared for an alias; None if it was not promoted for it."""
        return self.get_any_score(alias) if _SCORE + alias in self.tags or self.get_verdict(alias) else None

    def get_any_score(self, alias: str) -> _Score | None:
        """Return its score for an alias, or else that of its registration; None if a person registered it."""
        try:
            tags = {**self.tags, **json.loads(self.tags.get(_SCORE + alias, "{}"))}
            mode: Mode = "min" if tags.get(_MODE) == "min" else "max"
            replaces = tags.get(_REPLACES + alias) == "true"
            by = Comparison(tags.get(_METRIC_NAME, ""), mode, float(tags.get(_MIN_DELTA, 0)), replaces)
            return _Score(float(tags[_METRIC]), by, int(tags.get(_ORDER, 0)))
        except (KeyError, ValueError, TypeError):
            return None

    def get_verdict(self, alias: str) -> dict[str, Any]:
        """Return what was decided about the version for an alias; empty if nothing was."""
        return dict(json.loads(self.tags.get(f"{_VERDICT}.{alias}", "{}")))

    def is_decided(self, alias: str) -> bool:
        """Return whether its present score was compared."""
        score, verdict = self.get_score(alias), self.get_verdict(alias)
        return score is not None and bool(verdict) and verdict.get("order", 0) == score.order

    def is_pending(self, alias: str) -> bool:
        """Return whether a promotion has given it a score and was killed: it was not compared, or has not the alias."""
        is_refused = self.is_decided(alias) and not self.get_verdict(alias)["promoted"]
        return self.get_score(alias) is not None and _PROMOTED + alias not in self.tags and not is_refused

    def has_score(self, candidate: Candidate, comparison: Comparison, alias: str) -> bool:
        """Return whether a promotion like this one gave it its score. Another `min_delta` may correct a refusal."""
        score, verdict = self.get_score(alias), self.get_verdict(alias)
        if score is None or score.value != candidate.value or (_PROMOTED + alias in self.tags and not verdict):
            return False
        is_same = score.by.min_delta == comparison.min_delta or verdict.get("promoted")
        return bool(is_same) and comparison.matches(score.by.metric, score.by.mode)


class _Score(NamedTuple):
    """By what a version is compared for an alias."""

    value: float
    #: It `replaces` the champion, whatever that was, if it is of another metric or a person has chosen it.
    by: Comparison
    #: Larger than those of all promotions for the alias that had ended before.
    order: int

    def to_tags(self, alias: str) -> dict[str, str]:
        """Return the tags of a new version: its score, and the same for the alias."""
        tags = {_METRIC_NAME: self.by.metric, _METRIC: repr(self.value), _MODE: self.by.mode}
        tags[_MIN_DELTA] = repr(self.by.min_delta)
        more = {_ORDER: str(self.order), _REPLACES + alias: str(self.by.replaces).lower()}
        return {**tags, _SCORE + alias: json.dumps({**tags, **more})}


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
        versions = self._list_versions(model)
        own = _find_version(versions, candidate)
        is_pending = own is not None and own.is_pending(alias)
        if own is None or is_pending or not own.has_score(candidate, comparison, alias):
            if own is None or (get_local_path(candidate.uri) is None and not is_pending):
                candidate.check_files()
            if not versions:
                self._create_model(model)
            pending = own.number if own and is_pending else None
            versions, champion = self._follow_person(model, alias, versions, pending)
            own, versions = self._register(candidate, model, comparison, alias, versions)
            if not own.is_decided(alias):
                own = self._decide(model, own, versions, alias, is_taken=_is_foreign(champion, alias))
            best = self._move_alias(model, alias, own.number, versions)
            if own.get_verdict(alias)["promoted"] and best != own.number:
                # A better one was registered meanwhile, and has the alias.
                self._set_tag(model, own.number, _PROMOTED + alias, "true")
        verdict = own.get_verdict(alias)
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
        self._respect_person(model, alias, versions, target)

    def has_origin_of(self, uri: str) -> bool:
        return self._api.server.has_origin_of(uri)

    def repair(self, model: str, alias: str = CHAMPION) -> None:
        versions, _ = self._follow_person(model, alias, self._list_versions(model), None)
        for key in self._get_model(model)[1]:
            if key.startswith(f"{_MOVING}{alias}."):
                self._delete_model_tag(model, key)
        self._move_alias(model, alias, 0, versions)

    def _create_model(self, model: str) -> None:
        with SuppressCodes("RESOURCE_ALREADY_EXISTS"):
            self._api.post("registered-models/create", name=model)

    def _register(
        self, candidate: Candidate, model: str, comparison: Comparison, alias: str, versions: list[_Version]
    ) -> tuple[_Version, list[_Version]]:
        """Return the version of a candidate, created once, and all versions. Of a race, the lowest number stays."""
        own = _find_version(versions, candidate)
        if own is None or not own.has_score(candidate, comparison, alias):
            replaces = _check_metric(versions, own, model, comparison, alias)
            by = replace(comparison, replaces=replaces)
            score = _Score(candidate.value, by, _get_next_order(versions, alias))
            if own is None:
                run_id, source = self._store_files(candidate, model)
                tags = {_JOB: candidate.identity, "trainjob.name": candidate.job, **score.to_tags(alias)}
                versions = self._create_version(model, source, run_id, tags)
            else:
                self._delete_tag(model, own, _DEMOTED + alias)
                self._set_score(model, own.number, score, alias)
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
                if attempt == _TRIES - 1 or not error.transient:
                    raise
                time.sleep(random.uniform(0.05, 0.3))  # noqa: S311 -- no secret
                versions = self._list_versions(model)
                if any(each.tags.get(_JOB) == tags[_JOB] for each in versions):
                    return versions  # The answer was lost.
        return self._list_versions(model)

    def _store_files(self, candidate: Candidate, model: str) -> tuple[str | None, str]:
        """Return run and source of a version; files of this machine are uploaded to a separate folder of the run."""
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
        files = list_files(path)
        # The server decodes a path twice.
        if odd := next((each for each in files if set(each) & set("#?") or unquote(each) != each), None):
            raise InvalidRequestError(
                f"{files[odd]} cannot be uploaded: an MLflow server takes no name with '#', '?' or '%' and two digits; "
                "let the training write it under another name"
            )
        run_id = candidate.run_id or self._create_file_run(candidate)
        artifact_uri = self._api.get_run(run_id).info.artifact_uri
        if not artifact_uri.startswith("mlflow-artifacts:"):
            raise InvalidRequestError(
                f"the MLflow server stores artifacts at {artifact_uri} and takes no uploads; let the training write "
                "the model to a URI such as s3://bucket/model"
            )
        folder = f"registered/{hashlib.sha256(f'{model}/{candidate.identity}'.encode()).hexdigest()[:16]}"
        root = artifact_uri.partition(":")[2].lstrip("/")
        for name, file in files.items():
            self._api.upload(f"{root}/{folder}/{name}", file)
        candidate.check_files()  # Nothing was written while it was uploaded.
        return run_id, f"{artifact_uri}/{folder}"

    def _create_file_run(self, candidate: Candidate) -> str:
        experiment = self._api.get_experiment_id(_EXPERIMENT)
        found = self._api.search_runs([experiment], f"tags.`{_JOB}` = '{candidate.identity}'")
        if found:
            return found[0].id
        run_id = self._api.create_run(experiment, candidate.job, {_JOB: candidate.identity}, int(time.time() * 1000))
        self._api.post("runs/update", run_id=run_id, status="FINISHED")
        return run_id

    def _decide(self, model: str, own: _Version, versions: list[_Version], alias: str, is_taken: bool) -> _Version:
        """Record whether the version is better than all others, and return it with this verdict."""
        others = _find_best([each for each in versions if each.number != own.number], alias)
        best = _find_best(versions, alias)
        before = others.get_score(alias) if others else None
        score = own.get_score(alias)
        is_compared = before and score and not score.by.replaces
        verdict = {
            "promoted": not is_taken and best is not None and best.number == own.number,
            "before": before.value if before and is_compared else None,
            "order": score.order if score else 0,
        }
        return self._set_verdict(model, own, alias, verdict)

    def _set_verdict(self, model: str, version: _Version, alias: str, verdict: Mapping[str, Any]) -> _Version:
        key, text = f"{_VERDICT}.{alias}", json.dumps(verdict)
        self._set_tag(model, version.number, key, text)
        return replace(version, tags={**version.tags, key: text})

    def _move_alias(self, model: str, alias: str, own: int, versions: list[_Version]) -> int | None:
        """Set the alias until it names the best of all versions that were read after it was set; return that one."""
        moving = f"{_MOVING}{alias}.{own}"
        for _ in range(_MAX_ROUNDS):
            aliases, tags = self._get_model(model)
            current, is_marked = aliases.get(alias), moving in tags
            if current is not None and all(each.number != current for each in versions):
                versions = self._list_versions(model)  # It was registered later.
            best = _find_best(versions, alias)
            is_taken = any(each.number == current and each.get_score(alias) is None for each in versions)
            if best is None or current == best.number or is_taken:
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
            self._delete_model_tag(model, moving)
        return best.number if best else None

    def _follow_person(
        self, model: str, alias: str, versions: list[_Version], pending: int | None
    ) -> tuple[list[_Version], _Version | None]:
        """Respect a person who has moved or removed the alias; return the versions, and the one that the alias names.

        The version of a promotion that was killed is left out.
        """
        # Twice: a promoter that has just finished is no person.
        for is_certain in (False, True):
            aliases, tags = self._get_model(model)
            number = aliases.get(alias)
            target = next((each for each in versions if each.number == number), None)
            best = _find_best([each for each in versions if each.number != pending], alias)
            is_moved = best is not None and _PROMOTED + alias in best.tags and best.number != number
            is_chosen = target is not None and target.number != pending and target.get_score(alias) is None
            is_moving = any(key.startswith(f"{_MOVING}{alias}.") for key in tags)
            if is_moving or not (is_moved or is_chosen) or _is_foreign(target, alias):
                return versions, target
            if is_certain and (target or number is None):
                self._respect_person(model, alias, [each for each in versions if each.number != pending], target)
            versions = self._list_versions(model)
        return versions, target

    def _respect_person(self, model: str, alias: str, versions: list[_Version], target: _Version | None) -> None:
        """Let the version to which a person has moved the alias be the one that later ones are compared with.

        Those that are better than it are demoted; all, if the person has removed the alias.
        """
        champion = target.get_any_score(alias) if target else None
        if target and champion:
            order = _get_next_order(versions, alias)
            self._delete_tag(model, target, _DEMOTED + alias)
            self._set_tag(model, target.number, _PROMOTED + alias, "true")
            if verdict := target.get_verdict(alias):
                self._set_verdict(model, target, alias, {**verdict, "order": order})
            # What is written before this is written again if it is cut off: the alias differs from the best version.
            by = replace(champion.by, replaces=True)
            self._set_score(model, target.number, champion._replace(by=by, order=order), alias)
        best = _find_best(versions, alias)
        for each in sorted(versions, key=lambda each: each is best):  # As above: the best one is the last.
            score = each.get_score(alias)
            if score is None or (target and (champion is None or each.number == target.number)):
                continue
            if champion is None or is_better(score.value, champion.value, score.by.mode):
                self._set_tag(model, each.number, _DEMOTED + alias, "true")

    def _set_alias(self, model: str, alias: str, number: int) -> None:
        self._write("registered-models/alias", name=model, alias=alias, version=str(number))

    def _set_tag(self, model: str, number: int, key: str, value: str) -> None:
        self._write("model-versions/set-tag", name=model, version=str(number), key=key, value=value)

    def _delete_tag(self, model: str, version: _Version, key: str) -> None:
        if key in version.tags:
            self._api.post("model-versions/delete-tag", "DELETE", name=model, version=str(version.number), key=key)

    def _delete_model_tag(self, model: str, key: str) -> None:
        self._api.post("registered-models/delete-tag", "DELETE", name=model, key=key)

    def _set_score(self, model: str, number: int, score: _Score, alias: str) -> None:
        self._set_tag(model, number, _SCORE + alias, score.to_tags(alias)[_SCORE + alias])

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


def _find_version(versions: list[_Version], candidate: Candidate) -> _Version | None:
    return next(iter(_select_versions(versions, candidate)), None)


def _is_foreign(version: _Version | None, alias: str) -> bool:
    """Return whether a person has registered the version, without a metric: then no promotion moves the alias."""
    return version is not None and version.get_any_score(alias) is None


def _check_metric(
    versions: list[_Version], own: _Version | None, model: str, comparison: Comparison, alias: str
) -> bool:
    """Refuse another metric than that of the champion; return whether a version has the alias without comparison."""
    best = _find_best(versions, alias)
    score = best.get_score(alias) if best else None
    if best is None or score is None:
        return False
    if comparison.matches(score.by.metric, score.by.mode):
        return own is not None and best.number == own.number
    if any(_PROMOTED + alias in each.tags for each in versions):
        comparison.check(model, alias, score.by.metric, score.by.mode)
    return True


def _get_next_order(versions: list[_Version], alias: str) -> int:
    return max((score.order for each in versions if (score := each.get_score(alias))), default=0) + 1


def _find_best(versions: list[_Version], alias: str) -> _Version | None:
    """Return the best version: each must be better than those before it by its own `min_delta`, or replaces them."""
    scored = [
        (score, each) for each in versions if (score := each.get_score(alias)) and _DEMOTED + alias not in each.tags
    ]
    best: tuple[_Score, _Version] | None = None
    for score, each in sorted(scored, key=lambda pair: (pair[0].order, pair[1].number)):
        if best is None or score.by.replaces:
            best = score, each
        elif score.by.matches(best[0].by.metric, best[0].by.mode):
            is_best = is_better(score.value, best[0].value, score.by.mode, score.by.min_delta)
            best = (score, each) if is_best else best
    return best[1] if best else None
