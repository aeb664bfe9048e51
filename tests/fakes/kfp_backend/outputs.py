"""Where an input that comes from another task is found, through sub-pipelines, dsl.OneOf and collected loops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kfp_backend.metadata_store import Execution, MetadataStore, MetadataStoreError
from kfp_backend.values import ConversionError, parse_json


def find_parameter(store: MetadataStore, dag: Execution, task: str, key: str) -> Any:
    """Return an output parameter of a task, or the list of all iterations' if the task is a loop."""
    found = list(_producers(store, store.child(dag, task), key, "parameters"))
    values = [producer.outputs.get(name) for producer, name in found]
    return values if _is_loop(store.child(dag, task)) else values[0]


def find_artifacts(store: MetadataStore, dag: Execution, task: str, key: str) -> list[dict[str, Any]]:
    """Return an output artifact of a task, or those of all iterations if the task is a loop."""
    artifacts = []
    for producer, name in _producers(store, store.child(dag, task), key, "artifacts"):
        available = store.output_artifacts(producer)
        if name not in available:
            raise MetadataStoreError(
                f'cannot find output artifact key "{name}" in producer task "{producer.task_name}"'
            )
        artifact = available[name].runtime_artifact()
        if producer.in_workspace:
            artifact["metadata"]["_kfp_workspace"] = True
        artifacts.append(artifact)
    return artifacts


def read_items(value: Any) -> list[Any]:
    """Return the items of a loop: a list, or the JSON text of one."""
    items = parse_json(value) if isinstance(value, str) else value
    if not isinstance(items, list):
        raise ConversionError(f"value of type {type(value).__name__} cannot be iterated")
    return items


def _is_loop(execution: Execution) -> bool:
    return bool(execution.iteration_count)


def _producers(store: MetadataStore, task: Execution, key: str, kind: str) -> Iterator[tuple[Execution, str]]:
    """Follow an output down to the container tasks that have written it; a loop has one for each iteration."""
    if task.type != "dag":
        yield task, key
        return
    if _is_loop(task):
        for iteration in sorted(store.children(task), key=lambda each: each.iteration_index or 0):
            yield from _producers_in(store, iteration, key, kind)
        return
    yield from _producers_in(store, task, key, kind)


def _producers_in(store: MetadataStore, dag: Execution, key: str, kind: str) -> Iterator[tuple[Execution, str]]:
    specs = dag.parameter_producers if kind == "parameters" else dag.artifact_producers
    spec = (specs or {}).get(key)
    if spec is None:
        raise MetadataStoreError(f'output key "{key}" not found in parent task "{dag.task_name}"')
    name = "outputParameterKey" if kind == "parameters" else "outputArtifactKey"
    if kind == "parameters" and "valueFromParameter" in spec:
        selectors = [spec["valueFromParameter"]]
    elif kind == "parameters":
        selectors = spec["valueFromOneof"]["parameterSelectors"]
    else:
        selectors = spec["artifactSelectors"]
    if len(selectors) > 1 or "valueFromOneof" in spec:
        children = {child.task_name: child for child in store.children(dag)}
        ended = [each for each in selectors if _has_ended(children.get(each["producerSubtask"]))]
        if not ended:
            raise MetadataStoreError(f'processing OneOf: No successful task found for output key "{key}"')
        selectors = ended[:1]
    (selected,) = selectors
    yield from _producers(store, store.child(dag, selected["producerSubtask"]), selected[name], kind)


def _has_ended(execution: Execution | None) -> bool:
    return execution is not None and execution.state in ("CACHED", "COMPLETE")
