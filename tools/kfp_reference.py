"""Write the reference page of each KFP component from its signature and docstring: ``make compile``."""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "kfp"
sys.path[:0] = [str(ROOT / "pipelines")]

from compile import COMPONENTS  # noqa: E402 - a script of another folder

from trainer_core.backends.trainer_v2.preflight import PERMISSIONS  # noqa: E402
from trainer_core.k8s.rbac import KFP  # noqa: E402

#: Sections of a docstring that have a table or a block of their own on the page.
_SECTION = re.compile(r"^(Args|Returns|Example):$", re.M)
_ENTRY = re.compile(r"^    (?P<name>\w+): (?P<text>.*(?:\n {6,}.*)*)", re.M)
_ROLE = (
    "With a backend on a cluster, the service account of the step needs the role `trainjob-kfp-runner` in the namespace"
    " of the TrainJobs: [permissions](index.md#permissions)."
)
_NO_ROLE = "None: the component does not use the Kubernetes API."


def write(folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name in COMPONENTS:
        path = folder / f"{name}.md"
        path.write_text(page(name), encoding="utf-8")
        written.append(path)
    index = folder / "index.md"
    index.write_text(_index(), encoding="utf-8")
    return [*written, index]


def page(name: str) -> str:
    component = getattr(importlib.import_module(f"kfp_components.{name}"), name)
    spec, sections = component.component_spec, _sections(component)
    described = {**_entries(sections.get("Args", "")), **_entries(sections.get("Returns", ""))}
    uses_cluster = any(each in (spec.inputs or {}) for each in ("backend", "backend_config"))
    inputs = [(key, _kind(each.type), _default(each), described[key]) for key, each in (spec.inputs or {}).items()]
    outputs = [(key, _kind(each.type), described[key]) for key, each in (spec.outputs or {}).items()]
    parameters = [row for row in inputs if not _is_artifact(spec.inputs[row[0]].type)]
    artifacts = [row for row in inputs if _is_artifact(spec.inputs[row[0]].type)]
    lines = [
        f"# `{name}`",
        "",
        sections[""].strip(),
        "",
        _loading(name),
        "",
        "## Example",
        "",
        "<!-- not run: a part of a pipeline -->",
        "```python",
        inspect.cleandoc(sections["Example"].replace("::\n", "\n").strip("\n")),
        "```",
        "",
        *_table("Parameters", ("input", "type", "default", "meaning"), parameters),
        *_table("Input artifacts", ("input", "type", "default", "meaning"), artifacts),
        *_table("Outputs", ("output", "type", "meaning"), outputs),
        "## Permissions",
        "",
        _ROLE if uses_cluster else _NO_ROLE,
        "",
    ]
    return "\n".join(lines)


def _loading(name: str) -> str:
    return (
        f"`from kfp_components.{name} import {name}`. Without this package: `components.load_component_from_file`,"
        f" with `kfp_components/components/{name}.yaml` of the same version."
    )


def _index() -> str:
    lines = ["# KFP components", "", "How to use them together: [Kubeflow Pipelines](../guides/kfp.md).", ""]
    lines += ["| component | what it does |", "| --- | --- |"]
    for name in COMPONENTS:
        component = getattr(importlib.import_module(f"kfp_components.{name}"), name)
        lines.append(f"| [`{name}`]({name}.md) | {_cell(_sections(component)[''].strip().splitlines()[0])} |")
    rules = [
        (each.resource_name, ", ".join(each.verbs), each.api_resource.group or "core")
        for each in PERMISSIONS
        if KFP in each.users
    ]
    rights = ["## Permissions", "", "`kubectl apply --namespace NAMESPACE -f deploy/rbac.yaml` grants:", ""]
    return "\n".join([*lines, "", *rights, *_rows(("resource", "verbs", "API group"), rules)])


def _sections(component: Any) -> dict[str, str]:
    """Split a docstring by its sections; what comes before them is under the empty name."""
    parts = _SECTION.split(inspect.getdoc(component.pipeline_func) or "")
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def _entries(section: str) -> dict[str, str]:
    return {match["name"]: " ".join(match["text"].split()) for match in _ENTRY.finditer(section)}


def _is_artifact(kind: Any) -> bool:
    return "@" in str(kind)


def _kind(kind: Any) -> str:
    """system.Dataset@0.0.1 → Dataset; typing.Dict → Dict."""
    return str(kind).partition("@")[0].removeprefix("system.").removeprefix("typing.")


def _default(given: Any) -> str:
    if not given.optional:
        return "required"
    return "none" if given.default is None else f"`{given.default!r}`"


def _table(title: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    if not rows:
        return []
    return [f"## {title}", "", *_rows(head, rows)]


def _rows(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    body = [f"| `{name}` | {' | '.join(_cell(each) for each in rest)} |" for name, *rest in rows]
    return [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}", *body, ""]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    """Write the pages into this checkout, or into another folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=PAGES, help="folder to write into (default: docs/kfp)")
    for path in write(parser.parse_args().output):
        print(path)


if __name__ == "__main__":
    main()
