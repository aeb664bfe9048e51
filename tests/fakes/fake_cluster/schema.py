"""What an API server checks by a kind's schema: unknown fields, defaults, types, limits, list keys, rules."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from jsonschema import Draft7Validator, ValidationError

from fake_cluster import answers, cel, structural
from fake_cluster.answers import RefusedError
from fake_cluster.writing import Intent
from trainer_core.k8s.resources import ApiResource

_Cause = tuple[str, str, str]
_NO_KIND = ApiResource("", "", "", "")


class _Schema:
    """The schema of one kind."""

    def __init__(self, openapi: Mapping[str, Any]) -> None:
        self.openapi = openapi

    @cached_property
    def validator(self) -> Draft7Validator:
        """Made when it is first needed: that takes a while."""
        return Draft7Validator(structural.translated(self.openapi))


#: By identity of what they are made from: every cluster of a process has the same definitions.
_KNOWN: dict[int, _Schema] = {}


class Schemas:
    """The schemas of all kinds that have a definition; objects of other kinds are not validated."""

    def __init__(self, definitions: Iterable[Mapping[str, Any]]) -> None:
        self._schemas: dict[tuple[str, str, str], _Schema] = {}
        for definition in definitions:
            self.define(definition)

    def define(self, definition: Mapping[str, Any]) -> None:
        """Add the schemas of a CustomResourceDefinition."""
        spec = definition["spec"]
        for version in spec["versions"]:
            openapi = version["schema"]["openAPIV3Schema"]
            self._schemas[spec["group"], version["name"], spec["names"]["plural"]] = _KNOWN.setdefault(
                id(openapi), _Schema(openapi)
            )

    def check(self, intent: Intent) -> None:
        """Prune, default and validate what is to be kept."""
        kind = intent.kind
        schema = self._schemas.get((kind.group, kind.version, kind.plural))
        if schema is None:
            return
        self._refuse_unknown(intent, structural.prune(intent.new, schema.openapi))
        structural.fill_defaults(intent.new, schema.openapi)
        causes = [_cause(error) for error in schema.validator.iter_errors(_as_checked(intent.new))]
        causes += _duplicates(intent.new, schema)
        causes = causes or list(_broken_rules(intent, schema))
        if causes:
            raise answers.invalid(kind, intent.new["metadata"].get("name", ""), causes)

    def _refuse_unknown(self, intent: Intent, unknown: list[str]) -> None:
        if not unknown or (intent.validation == "Ignore" and intent.verb != "apply"):
            return
        kind, metadata = intent.kind, intent.new["metadata"]
        warnings = [f'unknown field "{path}"' for path in unknown]
        if intent.verb == "apply":
            about = f"({metadata.get('namespace', '')}/{metadata.get('name')}; {kind.api_version}, Kind={kind.kind})"
            text = f"failed to create typed patch object {about}: .{unknown[0]}: field not declared in schema"
            raise RefusedError(500, text, "InternalError")
        if intent.validation != "Strict":
            intent.warnings.extend(warnings)
            return
        error = f"strict decoding error: {', '.join(warnings)}"
        if intent.verb == "patch":
            cause = ("FieldValueInvalid", "patch", f'Invalid value: "object": {error}')
            raise answers.invalid(_NO_KIND, "", [cause])
        raise answers.bad_request(
            f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: {error}'
        )


def _as_checked(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the schema is about: metadata is checked elsewhere."""
    return {key: value for key, value in raw.items() if key != "metadata"}


def _duplicates(raw: Mapping[str, Any], schema: _Schema) -> list[_Cause]:
    found = structural.duplicates(_as_checked(raw), schema.openapi)
    return [("FieldValueDuplicate", path, f"Duplicate value: {json.dumps(key)}") for path, key in found]


def _broken_rules(intent: Intent, schema: _Schema) -> Iterator[_Cause]:
    for path, value, message in cel.violations(intent.new, intent.old, schema.openapi):
        shown = f'"{_type_of(value)}"' if isinstance(value, (dict, list)) else json.dumps(value)
        yield "FieldValueInvalid", path or "<nil>", f"Invalid value: {shown}: {message}"


def _cause(error: ValidationError) -> _Cause:
    """Return a violation in the words of an API server."""
    path = _path(error.absolute_path)
    limit, value = error.validator_value, error.instance
    match error.validator:
        case "required":
            missing = error.message.split("'")[1]
            return "FieldValueRequired", f"{path}.{missing}".strip("."), "Required value"
        case "enum":
            known = ", ".join(json.dumps(one) for one in limit)
            return "FieldValueNotSupported", path, f"Unsupported value: {json.dumps(value)}: supported values: {known}"
        case "maxLength":
            return "FieldValueTooLong", path, f"Too long: may not be more than {limit} bytes"
        case "maxItems":
            return "FieldValueTooMany", path, f"Too many: {len(value)}: must have at most {limit} items"
        case "type":
            found, wanted = _type_of(value), limit if isinstance(limit, str) else limit[0]
            text = f'Invalid value: "{found}": {path} in body must be of type {wanted}: "{found}"'
            return "FieldValueTypeInvalid", path, text
    return "FieldValueInvalid", path, f"Invalid value: {json.dumps(value)}: {path} in body {_demand(error)}"


def _demand(error: ValidationError) -> str:
    limit = error.validator_value
    return {
        "pattern": f"should match '{limit}'",
        "minimum": f"should be greater than or equal to {limit}",
        "maximum": f"should be less than or equal to {limit}",
        "minLength": f"should be at least {limit} chars long",
        "minItems": f"should have at least {limit} items",
        "minProperties": f"should have at least {limit} properties",
    }.get(str(error.validator), error.message)


def _type_of(value: Any) -> str:
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return kinds.get(type(value), "null")


def _path(parts: Iterable[str | int]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).lstrip(".")
