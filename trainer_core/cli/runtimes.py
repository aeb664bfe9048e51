"""Subcommands of `trainjob runtimes`: list and show runtimes on any backend, manage them on a cluster."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any

import typer
import yaml
from typer.core import TyperGroup

from trainer_core.base.errors import InvalidRequestError
from trainer_core.cli import exit_codes
from trainer_core.cli.options import GlobalOptions
from trainer_core.cli.output import OutputFormat, OutputOption, print_json, print_table, print_yaml
from trainer_core.frontend.definition_file import read_yaml_documents
from trainer_core.k8s.resources import CLUSTER_TRAINING_RUNTIMES, TRAINING_RUNTIMES
from trainer_core.model.config import KubernetesBackendConfig
from trainer_core.model.runtimes import Runtime
from trainer_core.runtime_admin import ml_policies
from trainer_core.runtime_admin.apply import RuntimeAdmin, RuntimeSummary, summarize_runtime
from trainer_core.runtime_admin.diagnostics import ERROR, Diagnostic
from trainer_core.runtime_admin.diff import Change
from trainer_core.runtime_admin.ml_policies import upgrade_runtime
from trainer_core.runtime_admin.validate import check_types, validate_runtime

FileArgument = Annotated[str, typer.Argument(help="YAML file with one or more runtimes; - for standard input.")]
NameArgument = Annotated[str, typer.Argument(help="Name of the runtime.")]


class Scope(str, Enum):
    """Scope of a runtime: the cluster or a namespace."""

    CLUSTER = "cluster"
    NAMESPACE = "namespace"


class ManifestFormat(str, Enum):
    """Output format of a runtime."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


class _RuntimesGroup(TyperGroup):
    """Command group in which `runtimes NAME` is short for `runtimes get NAME`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the subcommand for the arguments."""
        return super().resolve_command(ctx, args if args[0] in self.commands else ["get", *args])


group = typer.Typer(
    cls=_RuntimesGroup, epilog=exit_codes.HELP, help="List and show runtimes; on a cluster, manage them."
)


@group.callback(invoke_without_command=True)
def runtimes(context: typer.Context, output: OutputOption = OutputFormat.TABLE) -> None:
    """List the runtimes, show one, or manage those of a cluster."""
    if context.invoked_subcommand is None:
        list_runtimes(context, output)


@group.command("list")
def list_runtimes(context: typer.Context, output: OutputOption = OutputFormat.TABLE) -> None:
    """List the runtimes that TrainJobs can use."""
    options: GlobalOptions = context.obj
    if _is_trainer_cluster(options):
        _print_summaries(create_runtime_admin(options).list(), output)
        return
    available = options.client.list_runtimes()
    if output is OutputFormat.JSON:
        print_json([_build_summary(runtime) for runtime in available])
    else:
        _print_runtimes(available)


@group.command()
def get(
    context: typer.Context,
    name: NameArgument,
    output: Annotated[
        ManifestFormat,
        typer.Option(
            "--output", "-o", help="Output format: table, json, or yaml for the manifest (cluster backends only)."
        ),
    ] = ManifestFormat.TABLE,
) -> None:
    """Show a runtime: on this machine with its Python packages, on a cluster with the problems of its manifest."""
    options: GlobalOptions = context.obj
    if _is_trainer_cluster(options):
        admin = create_runtime_admin(options)
        raw = admin.get(name)
        _print_manifest(raw, admin.validate(raw), output)
        return
    if output is ManifestFormat.YAML:
        raise InvalidRequestError(
            f"the {options.config.backend} backend has no runtime manifests; use "
            "trainjob --backend kubernetes runtimes …"
        )
    runtime = options.client.get_runtime(name)
    packages = options.client.list_runtime_packages(runtime)
    if output is ManifestFormat.JSON:
        print_json({**_build_summary(runtime), "packages": packages})
        return
    _print_runtimes([runtime])
    sys.stdout.write("".join(f"{package}\n" for package in packages))


@group.command()
def validate(
    context: typer.Context,
    file: FileArgument,
    server: Annotated[
        bool, typer.Option("--server", help="Use the cluster's version of Trainer, and validate by a dry run on it.")
    ] = False,
    trainer_version: Annotated[
        str | None,
        typer.Option(help="Version of Trainer, such as 2.1. Default: the newest known version.", show_default=False),
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> int:
    """Check runtime manifests and print their problems. Exit code 2 if there are errors. Needs no cluster."""
    if server and trainer_version is not None:
        raise InvalidRequestError("--trainer-version and --server cannot be used together; the server has its version")
    manifests = read_manifests(file)
    fields = ml_policies.get_fields(trainer_version) if trainer_version is not None else ml_policies.NEWEST
    if server:
        fields = create_runtime_admin(context.obj).ml_policy_fields
    results = [(_get_name(manifest), validate_runtime(manifest, fields)) for manifest in manifests]
    if output is OutputFormat.JSON:
        print_json(
            [{"name": name, "findings": [each.to_dict() for each in diagnostics]} for name, diagnostics in results]
        )
    else:
        for name, diagnostics in results:
            print("\n".join(f"{name}: {each}" for each in diagnostics) or f"{name}: ok")
    if any(_has_errors(diagnostics) for _, diagnostics in results):
        return exit_codes.BAD_INPUT
    if server:
        for manifest in manifests:
            create_runtime_admin(context.obj).dry_run(manifest)
    return exit_codes.OK


@group.command()
def upgrade(file: FileArgument) -> int:
    """Print runtimes of Trainer 2.0 and 2.1 as 2.2 and later accept them. Comments list the changes. Needs no cluster.

    Exit code 2 if a runtime has other errors, which are printed on standard error.
    """
    has_errors = False
    for manifest in read_manifests(file):
        wrong = list(check_types(manifest))
        if wrong:
            raise InvalidRequestError(f"runtime {_get_name(manifest)!r}: {wrong[0]}")
        upgraded, changes = upgrade_runtime(manifest)
        print("".join(f"# {change}\n" for change in changes), end="")
        print("---")
        print_yaml(upgraded)
        errors = [each for each in validate_runtime(upgraded) if each.severity == ERROR]
        has_errors = has_errors or bool(errors)
        for each in errors:
            print(f"{_get_name(manifest)}: {each}", file=sys.stderr)
    return exit_codes.BAD_INPUT if has_errors else exit_codes.OK


@group.command()
def diff(context: typer.Context, file: FileArgument, output: OutputOption = OutputFormat.TABLE) -> int:
    """Print what `apply` would change. Exit code 1 if there are changes."""
    admin = create_runtime_admin(context.obj)
    results = [(_get_name(manifest), admin.diff(manifest)) for manifest in read_manifests(file)]
    if output is OutputFormat.JSON:
        print_json([{"name": name, "changes": [each.to_dict() for each in changes]} for name, changes in results])
    else:
        for name, changes in results:
            print("\n".join(f"{name}: {_format_change(each)}" for each in changes) or f"{name}: unchanged")
    return exit_codes.FAILED if any(changes for _, changes in results) else exit_codes.OK


@group.command()
def apply(
    context: typer.Context,
    file: FileArgument,
    recreate: Annotated[
        bool,
        typer.Option("--recreate", help="Delete and create a runtime again if the change is to an immutable field."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Validate on the server without a change.")] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Create or update runtimes. Running TrainJobs are not changed."""
    admin = create_runtime_admin(context.obj)
    manifests = read_manifests(file)
    _reject_invalid(admin, manifests)
    results = []
    for manifest in manifests:
        if dry_run:
            admin.dry_run(manifest)
        action = "accepted" if dry_run else admin.apply(manifest, recreate=recreate)
        results.append({"name": _get_name(manifest), "kind": manifest["kind"], "action": action})
        if output is OutputFormat.TABLE:
            print(f"{manifest['kind']} {_get_name(manifest)} {action}")
    if output is OutputFormat.JSON:
        print_json(results)


@group.command()
def delete(
    context: typer.Context,
    name: NameArgument,
    scope: Annotated[
        Scope | None, typer.Option(help="Scope, if both have a runtime of that name. Default: namespace, then cluster.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Delete the runtime although TrainJobs use it.")] = False,
) -> None:
    """Delete a runtime, unless a TrainJob that has not ended uses it."""
    kinds = {Scope.CLUSTER: CLUSTER_TRAINING_RUNTIMES, Scope.NAMESPACE: TRAINING_RUNTIMES}
    create_runtime_admin(context.obj).delete(name, scope=kinds[scope] if scope else None, force=force)


def create_runtime_admin(options: GlobalOptions) -> RuntimeAdmin:
    """Return the administration of the cluster's runtimes."""
    config = options.config
    if not isinstance(config, KubernetesBackendConfig):
        raise InvalidRequestError(
            f"the {config.backend} backend has no runtimes to manage; use trainjob --backend kubernetes runtimes …"
        )
    return RuntimeAdmin(config)


def _is_trainer_cluster(options: GlobalOptions) -> bool:
    return isinstance(options.config, KubernetesBackendConfig)


def read_manifests(path: str) -> list[Any]:
    """Return the YAML documents of a file, or of standard input for ``-``; they may be of any type."""
    documents = read_yaml_documents(path, kubernetes=True)
    if not documents:
        raise InvalidRequestError(f"{path} has no YAML documents; it must have at least one")
    return documents


def _get_name(manifest: Any) -> str:
    metadata = manifest.get("metadata") if isinstance(manifest, Mapping) else None
    return str(metadata.get("name") or "?") if isinstance(metadata, Mapping) else "?"


def _has_errors(diagnostics: list[Diagnostic]) -> bool:
    return any(each.severity == ERROR for each in diagnostics)


def _reject_invalid(admin: RuntimeAdmin, manifests: list[dict[str, Any]]) -> None:
    """Validate all manifests before the first one is applied."""
    for manifest in manifests:
        diagnostics = admin.validate(manifest)
        for each in diagnostics:
            print(f"{_get_name(manifest)}: {each}", file=sys.stderr)
        if _has_errors(diagnostics):
            raise InvalidRequestError(f"runtime {_get_name(manifest)!r} has errors; nothing was applied")


def _format_change(change: Change) -> str:
    if not change.path:
        return "would be created"
    note = " (needs --recreate)" if change.fixed else ""
    return f"{change.path}: {_format_value(change.before)} -> {_format_value(change.after)}{note}"


def _format_value(value: Any) -> str:
    text = "(none)" if value is None else yaml.safe_dump(value, default_flow_style=True, width=10_000).strip()
    return text.removesuffix("...").strip()


def _print_summaries(summaries: list[RuntimeSummary], output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json([each.to_dict() for each in summaries])
        return
    columns = ("NAME", "NAMESPACE", "FRAMEWORK", "POLICY", "NODES", "DEVICE", "INITIALIZERS", "IMAGE", "NOTE")
    print_table(columns, [_build_row(each) for each in summaries])


def _build_row(runtime: RuntimeSummary) -> tuple[Any, ...]:
    count = "" if runtime.device_count == "Unknown" else f"{runtime.device_count} "
    device = "" if runtime.device == "Unknown" else f"{count}{runtime.device}"
    return (
        runtime.name,
        runtime.namespace or "(all)",
        runtime.framework,
        runtime.policy,
        runtime.num_nodes,
        device,
        ",".join(runtime.initializers),
        runtime.image,
        "deprecated" if runtime.deprecated else "",
    )


def _print_manifest(raw: dict[str, Any], diagnostics: list[Diagnostic], output: ManifestFormat) -> None:
    if output is ManifestFormat.TABLE:
        _print_summaries([summarize_runtime(raw)], OutputFormat.TABLE)
        print("".join(f"\n{each}" for each in diagnostics), end="\n" if diagnostics else "")
        return
    manifest = {**raw, "metadata": {key: value for key, value in raw["metadata"].items() if key != "managedFields"}}
    if output is ManifestFormat.YAML:
        print_yaml(manifest)
    else:
        print_json(
            {
                **summarize_runtime(raw).to_dict(),
                "manifest": manifest,
                "findings": [each.to_dict() for each in diagnostics],
            }
        )


def _print_runtimes(runtimes: list[Runtime]) -> None:
    rows = [(r.name, r.trainer.framework, r.trainer.num_nodes, r.trainer.device, r.trainer.image) for r in runtimes]
    print_table(("NAME", "FRAMEWORK", "NODES", "DEVICE", "IMAGE"), rows)


def _build_summary(runtime: Runtime) -> dict[str, Any]:
    trainer = runtime.trainer
    fields = {
        "framework": trainer.framework,
        "image": trainer.image,
        "num_nodes": trainer.num_nodes,
        "device": trainer.device,
    }
    return {"name": runtime.name, "kind": runtime.kind.value, **fields, "command": list(trainer.command)}
