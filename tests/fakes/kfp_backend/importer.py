"""dsl.importer: registers an artifact that is elsewhere, and may download it into the run's workspace."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kfp_backend.metadata_store import Execution, MetadataStore
from kfp_backend.object_store import BucketConfig, ObjectStore, ObjectStoreError, local_path


class ImporterError(Exception):
    """The importer's step fails."""


def import_artifact(
    name: str,
    spec: Mapping[str, Any],
    importer: Mapping[str, Any],
    component: Mapping[str, Any],
    dag: Execution,
    store: MetadataStore,
    objects: ObjectStore,
    workspace: Path | None,
) -> Execution:
    """Register an artifact (ImportLauncher); an equal one is used again unless ``reimport`` is set."""
    to_workspace = bool(importer.get("downloadToWorkspace"))
    execution = store.create("importer", name, dag, inputs={})
    execution.in_workspace = to_workspace
    uri = _read_uri(spec, importer, dag)
    title = importer["typeSchema"].get("schemaTitle", "")
    _check_uri(uri, title, to_workspace)
    metadata = importer.get("metadata", {})
    if to_workspace:
        if workspace is None:
            raise ImporterError(f"{uri}: the pipeline has no workspace to download it to")
        config = BucketConfig.parse_artifact(uri)
        objects.download(config, config.key(uri), workspace / ".artifacts" / local_path(uri).lstrip("/"))
    known = [each for each in store.artifacts.values() if each.uri == uri and each.type == title]
    artifact = known[0] if known and not importer.get("reimport") else store.record_artifact(name, title, uri, metadata)
    (output,) = component["outputDefinitions"]["artifacts"]
    execution.output_events.append((output, artifact.id))
    execution.state = "COMPLETE"
    return execution


def _read_uri(spec: Mapping[str, Any], importer: Mapping[str, Any], dag: Execution) -> str:
    source = importer["artifactUri"]
    if "constant" in source:
        uri = source["constant"]
    else:
        given = spec.get("inputs", {}).get("parameters", {}).get(source["runtimeParameter"], {})
        name = given.get("componentInputParameter", "")
        if name not in dag.inputs:
            raise ImporterError(f"error resolving artifact URI: parent DAG does not have input parameter {name}")
        uri = dag.inputs[name]
    if not isinstance(uri, str) or not uri:
        raise ImporterError("empty artifact URI")
    return uri


def _check_uri(uri: str, title: str, to_workspace: bool) -> None:
    if uri.startswith("oci://"):
        if to_workspace:
            raise ImporterError("importer workspace download does not support OCI registries")
        if title != "system.Model":
            raise ImporterError(f"the {title} artifact type does not support OCI registries")
        return
    try:
        BucketConfig.parse(uri)
    except ObjectStoreError as error:
        raise ImporterError(f"no provider scheme found in artifact URI: {uri}") from error
