"""Subcommands for runtimes: look at them on any backend, manage them on a cluster."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any

import typer
import yaml
from typer.core import TyperGroup

from trainer_core.admin.apply import RuntimeAdmin
from trainer_core.admin.diff import Change
from trainer_core.admin.findings import ERROR, Finding
from trainer_core.admin.listed import Listed, listed
from trainer_core.admin.validate import findings
from trainer_core.cli import exits
from trainer_core.cli.files import documents
from trainer_core.cli.output import Format, Output, print_data, print_table
from trainer_core.cli.settings import Settings
from trainer_core.cluster.kinds import CLUSTER_TRAINING_RUNTIMES, TRAINING_RUNTIMES
from trainer_core.configs import KubernetesBackendConfig
from trainer_core.errors import InvalidRequestError
from trainer_core.runtimes import Runtime

__all__ = ["administrator", "group", "manifests_of", "print_yaml"]

File = Annotated[str, typer.Argument(help="Runtimes in YAML, one or several documents; - for standard input.")]
Name = Annotated[str, typer.Argument(help="Name of the runtime.")]


class Scope(str, Enum):
    """Which of two runtimes of one name."""

    CLUSTER = "cluster"
    NAMESPACE = "namespace"


class Form(str, Enum):
    """How to print a runtime."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


class _Runtimes(TyperGroup):
    """`runtimes NAME` is short for `runtimes get NAME`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the subcommand of the arguments."""
        return super().resolve_command(ctx, args if args[0] in self.commands else ["get", *args])


group = typer.Typer(cls=_Runtimes, epilog=exits.HELP, help="Look at runtimes; on a cluster, manage them.")


@group.callback(invoke_without_command=True)
def runtimes(context: typer.Context, output: Output = Format.TABLE) -> None:
    """List the runtimes, show one by its name, or manage those of a cluster."""
    if context.invoked_subcommand is None:
        show_all(context, output)


@group.command("list")
def show_all(context: typer.Context, output: Output = Format.TABLE) -> None:
    """List the runtimes that a TrainJob can refer to."""
    settings: Settings = context.obj
    if _is_cluster(settings):
        _print_listed(administrator(settings).list(), output)
        return
    found = settings.client.list_runtimes()
    if output is Format.JSON:
        print_data([_facts(runtime) for runtime in found])
    else:
        _print_runtimes(found)


@group.command()
def get(
    context: typer.Context,
    name: Name,
    output: Annotated[Form, typer.Option("--output", "-o", help="yaml for the manifest, on a cluster.")] = Form.TABLE,
) -> None:
    """Show one runtime: with its Python packages on this machine, with what is wrong with it on a cluster."""
    settings: Settings = context.obj
    if _is_cluster(settings):
        _print_manifest(administrator(settings).get(name), output)
        return
    if output is Form.YAML:
        raise InvalidRequestError(
            "only runtimes of a cluster have a manifest: trainjob --backend kubernetes runtimes …"
        )
    found = settings.client.get_runtime(name)
    packages = settings.client.backend.get_runtime_packages(found)
    if output is Form.JSON:
        print_data({**_facts(found), "packages": packages})
        return
    _print_runtimes([found])
    sys.stdout.write("".join(f"{package}\n" for package in packages))


@group.command()
def validate(
    context: typer.Context,
    file: File,
    server: Annotated[bool, typer.Option("--server", help="Ask the cluster as well, by a dry run.")] = False,
    output: Output = Format.TABLE,
) -> int:
    """Say what is wrong with runtimes; exit code 2 if that is an error. Needs no cluster."""
    manifests = manifests_of(file)
    found = [(_name(manifest), findings(manifest)) for manifest in manifests]
    if output is Format.JSON:
        print_data([{"name": name, "findings": [each.to_dict() for each in all_of_it]} for name, all_of_it in found])
    else:
        for name, all_of_it in found:
            print("\n".join(f"{name}: {each}" for each in all_of_it) or f"{name}: ok")
    if _has_errors([each for _, all_of_it in found for each in all_of_it]):
        return exits.BAD_INPUT
    for manifest in manifests if server else ():
        administrator(context.obj).dry_run(manifest)
    return exits.OK


@group.command()
def diff(context: typer.Context, file: File, output: Output = Format.TABLE) -> int:
    """Show what apply would change; exit code 1 if that is anything."""
    admin = administrator(context.obj)
    found = [(_name(manifest), admin.diff(manifest)) for manifest in manifests_of(file)]
    if output is Format.JSON:
        print_data([{"name": name, "changes": [each.to_dict() for each in changes]} for name, changes in found])
    else:
        for name, changes in found:
            print("\n".join(f"{name}: {_change_line(each)}" for each in changes) or f"{name}: the same")
    return exits.FAILED if any(changes for _, changes in found) else exits.OK


@group.command()
def apply(
    context: typer.Context,
    file: File,
    recreate: Annotated[
        bool, typer.Option("--recreate", help="Delete and create again what the server does not let change.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only ask the server whether it would.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Create runtimes, or make those there are like them. TrainJobs that run are not touched."""
    admin = administrator(context.obj)
    manifests = manifests_of(file)
    _refuse_errors(manifests)
    done = []
    for manifest in manifests:
        if dry_run:
            admin.dry_run(manifest)
        action = "accepted" if dry_run else admin.apply(manifest, recreate=recreate)
        done.append({"name": _name(manifest), "kind": manifest["kind"], "action": action})
        if output is Format.TABLE:
            print(f"{manifest['kind']} {_name(manifest)} {action}")
    if output is Format.JSON:
        print_data(done)


@group.command()
def delete(
    context: typer.Context,
    name: Name,
    scope: Annotated[
        Scope | None, typer.Option(help="Which of two with that name; the namespace's own comes first.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Do not ask whether TrainJobs use it.")] = False,
) -> None:
    """Delete a runtime that no unfinished TrainJob refers to."""
    kinds = {Scope.CLUSTER: CLUSTER_TRAINING_RUNTIMES, Scope.NAMESPACE: TRAINING_RUNTIMES}
    administrator(context.obj).delete(name, scope=kinds[scope] if scope else None, force=force)


def administrator(settings: Settings) -> RuntimeAdmin:
    """Return what manages the runtimes of the chosen cluster.

    Raises:
        InvalidRequestError: The chosen backend is no cluster with Kubeflow Trainer.
    """
    config = settings.config
    if not isinstance(config, KubernetesBackendConfig):
        raise InvalidRequestError(
            f"the {config.backend} backend has no runtimes to manage: trainjob --backend kubernetes runtimes …"
        )
    return RuntimeAdmin(config)


def print_yaml(manifest: Mapping[str, Any]) -> None:
    """Print a manifest."""
    print(yaml.safe_dump(dict(manifest), sort_keys=False, allow_unicode=True), end="")


def _is_cluster(settings: Settings) -> bool:
    return isinstance(settings.config, KubernetesBackendConfig)


def manifests_of(path: str) -> list[Any]:
    """Return the documents of a file or, for ``-``, of standard input; one that is no mapping is for others to find.

    Raises:
        InvalidRequestError: There is none.
    """
    found = documents(path)
    if not found:
        raise InvalidRequestError(f"{path} holds nothing")
    return found


def _name(manifest: Any) -> str:
    metadata = manifest.get("metadata") if isinstance(manifest, Mapping) else None
    return str(metadata.get("name") or "?") if isinstance(metadata, Mapping) else "?"


def _has_errors(found: list[Finding]) -> bool:
    return any(each.severity == ERROR for each in found)


def _refuse_errors(manifests: list[dict[str, Any]]) -> None:
    """All or none: what is wrong with the last of a file is said before the first is applied."""
    for manifest in manifests:
        found = findings(manifest)
        for each in found:
            print(f"{_name(manifest)}: {each}", file=sys.stderr)
        if _has_errors(found):
            raise InvalidRequestError(f"runtime {_name(manifest)!r} has errors; nothing was applied")


def _change_line(change: Change) -> str:
    if not change.path:
        return "would be created"
    note = " (needs --recreate)" if change.fixed else ""
    return f"{change.path}: {_short(change.before)} -> {_short(change.after)}{note}"


def _short(value: Any) -> str:
    text = "nothing" if value is None else yaml.safe_dump(value, default_flow_style=True, width=10_000).strip()
    return text.removesuffix("...").strip()


def _print_listed(found: list[Listed], output: Format) -> None:
    if output is Format.JSON:
        print_data([each.to_dict() for each in found])
        return
    columns = ("NAME", "NAMESPACE", "FRAMEWORK", "POLICY", "NODES", "DEVICE", "INITIALIZERS", "IMAGE", "NOTE")
    print_table(columns, [_row(each) for each in found])


def _row(found: Listed) -> tuple[Any, ...]:
    count = "" if found.device_count == "Unknown" else f"{found.device_count} "
    device = "" if found.device == "Unknown" else f"{count}{found.device}"
    note = "deprecated" if found.deprecated else ""
    first = ",".join(found.initializers)
    place = found.namespace or "(all)"
    return found.name, place, found.framework, found.policy, found.num_nodes, device, first, found.image, note


def _print_manifest(raw: dict[str, Any], output: Form) -> None:
    wrong = findings(raw)
    if output is Form.TABLE:
        _print_listed([listed(raw)], Format.TABLE)
        print("".join(f"\n{each}" for each in wrong), end="\n" if wrong else "")
        return
    manifest = {**raw, "metadata": {key: value for key, value in raw["metadata"].items() if key != "managedFields"}}
    if output is Form.YAML:
        print_yaml(manifest)
    else:
        print_data({**listed(raw).to_dict(), "manifest": manifest, "findings": [each.to_dict() for each in wrong]})


def _print_runtimes(found: list[Runtime]) -> None:
    rows = [(r.name, r.trainer.framework, r.trainer.num_nodes, r.trainer.device, r.trainer.image) for r in found]
    print_table(("NAME", "FRAMEWORK", "NODES", "DEVICE", "IMAGE"), rows)


def _facts(runtime: Runtime) -> dict[str, Any]:
    trainer = runtime.trainer
    facts = {
        "framework": trainer.framework,
        "image": trainer.image,
        "num_nodes": trainer.num_nodes,
        "device": trainer.device,
    }
    return {"name": runtime.name, "kind": runtime.kind.value, **facts, "command": list(trainer.command)}
