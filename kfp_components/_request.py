"""From the inputs of a component to the request of its TrainJob.

Exactly once, over retries: KFP gives a task its output URIs once, the same for each of its retries and others for
every run and loop iteration. So the URI of an output artifact is the job's owner, and a retry finds its job by it.
"""

from __future__ import annotations

import copy
from typing import Any

from kfp_components._executor import Artifact
from trainer_core.client import TrainerClient
from trainer_core.cluster.marks import RUN
from trainer_core.errors import InvalidRequestError
from trainer_core.request import TrainJobRequest

__all__ = ["ON_THIS_MACHINE", "asked_for", "fetches", "of_run", "owned", "trains"]

#: Backends whose jobs see this machine's files.
ON_THIS_MACHINE = ("local", "debug")


def asked_for(client: TrainerClient, request: dict[str, Any] | None, file: Artifact | None) -> dict[str, Any]:
    """Return the request as plain data: what `trainer_core.build.plain` returns, or a definition as in a file.

    Args:
        client: Says which options its backend accepts.
        request: Given as a parameter.
        file: Given as a file, in JSON or YAML.

    Raises:
        InvalidRequestError: Neither or both are given, or it cannot be right.
    """
    if (request is None) == (file is None):
        raise InvalidRequestError("give either request or request_file: the TrainJob as a dict, or as a file")
    from trainer_core.cli import definition  # Only for those who write definitions by hand.

    data = copy.deepcopy(request) if file is None else definition.read(str(file.require_path()))
    if data is None or "version" in data:
        return data or {}
    # A random name would be another one at each try.
    made = definition.request(client, data).to_dict()
    return made if data.get("name") else {key: value for key, value in made.items() if key != "name"}


def owned(data: dict[str, Any], job_name: str | None, uri: str, slug: str) -> TrainJobRequest:
    """Validate a request that has a name, or else belongs to an output of this task.

    Args:
        data: The request as plain data.
        job_name: Wins over everything. A named job stands for itself: whoever asks for the same gets the same.
        uri: Of an output artifact.
        slug: The readable part of the job's name.

    Raises:
        InvalidRequestError: Something in the request cannot be right.
    """
    name = job_name or data.get("name")
    identity = {"name": name} if name else {"owner": {"key": uri, "slug": slug}}
    return TrainJobRequest.parse({**data, **identity})


def of_run(data: dict[str, Any], run_id: str | None) -> None:
    """Write down which run the job belongs to, so that it can be found when all else of the run is gone."""
    if run_id:
        metadata = data.get("metadata") or {}
        data["metadata"] = {**metadata, "labels": {**(metadata.get("labels") or {}), RUN: run_id}}


def trains(data: dict[str, Any], func_args: dict[str, Any], **numbers: int) -> None:
    """Let the trainer of a request have these arguments and numbers.

    Raises:
        InvalidRequestError: It has none that could take them.
    """
    wanted = {key: value for key, value in numbers.items() if value}
    if not func_args and not wanted:
        return
    trainer = data.get("trainer") or {}
    if not trainer:
        raise InvalidRequestError("func_args, num_nodes and num_proc_per_node need a request with a trainer")
    trainer.update(wanted)
    if func_args:
        if not trainer.get("code"):
            raise InvalidRequestError("func_args are for a training function; this request runs an image or a recipe")
        trainer["code"]["args"] = {**(trainer["code"].get("args") or {}), **func_args}


def fetches(data: dict[str, Any], role: str, artifact: Artifact | None, uri: str | None, backend: str) -> None:
    """Let the job fetch an artifact of the pipeline, or a URI, instead of what its request says.

    Raises:
        InvalidRequestError: Both are given, or the backend cannot reach the artifact.
    """
    if artifact is not None and uri:
        raise InvalidRequestError(f"{role} and {role}_uri are both given; give one of them")
    if artifact is None and not uri:
        return
    source = {"storage_uri": uri} if artifact is None else _source(role, artifact, backend)
    data["initializer"] = {**(data.get("initializer") or {}), role: source}


def _source(role: str, artifact: Artifact, backend: str) -> dict[str, Any]:
    if backend in ON_THIS_MACHINE:
        # KFP has brought it here already: link, do not copy it again.
        return {"storage_uri": artifact.require_path().absolute().as_uri(), "link": True}
    if "://" not in artifact.uri:
        raise InvalidRequestError(
            f"{role}: the {backend} backend cannot read {artifact.uri} of this machine; pass {role}_uri, or run the "
            "pipeline where artifacts lie in an object store"
        )
    return {"storage_uri": artifact.uri}
