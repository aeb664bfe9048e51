"""What holds for the metadata of every object: names, labels, the size of annotations."""

from __future__ import annotations

import re

from fake_cluster import answers
from fake_cluster.resource_kinds import NAMESPACES
from fake_cluster.writing import Intent
from trainer_core.k8s.resources import ACCESS_REVIEWS, JOBS

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_ANNOTATIONS = 256 * 1024
_PART = 63
_WHOLE = 253


def check(intent: Intent) -> None:
    """Refuse names, labels and annotations that no object may have."""
    if intent.kind == ACCESS_REVIEWS or intent.part:
        return
    metadata = intent.new["metadata"]
    causes = _name(intent, metadata.get("name") or metadata.get("generateName", "") + "x")
    causes += [cause for key, value in (metadata.get("labels") or {}).items() for cause in _label(key, value)]
    annotations = metadata.get("annotations") or {}
    causes += [_bad_key("metadata.annotations", key) for key in annotations if not _KEY.fullmatch(key.lower())]
    if sum(len(key) + len(str(value).encode()) for key, value in annotations.items()) > _ANNOTATIONS:
        message = f"Too long: may not be more than {_ANNOTATIONS} bytes"
        causes.append(("FieldValueTooLong", "metadata.annotations", message))
    if causes:
        raise answers.invalid(intent.kind, metadata.get("name", ""), causes)


def _name(intent: Intent, name: str) -> list[tuple[str, str, str]]:
    longest = _PART if intent.kind in (JOBS, NAMESPACES) else _WHOLE
    if len(name) > longest:
        return [
            ("FieldValueInvalid", "metadata.name", f'Invalid value: "{name}": must be no more than {longest} bytes')
        ]
    if not _SUBDOMAIN.fullmatch(name):
        rule = (
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must "
            "start and end with an alphanumeric character"
        )
        return [("FieldValueInvalid", "metadata.name", f'Invalid value: "{name}": {rule}')]
    return []


def _label(key: str, value: object) -> list[tuple[str, str, str]]:
    causes = [] if _KEY.fullmatch(key) else [_bad_key("metadata.labels", key)]
    if not isinstance(value, str) or not _VALUE.fullmatch(value):
        rule = (
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must "
            "start and end with an alphanumeric character"
        )
        causes.append(("FieldValueInvalid", "metadata.labels", f'Invalid value: "{value}": {rule}'))
    elif len(value) > _PART:
        message = f'Invalid value: "{value}": must be no more than {_PART} bytes'
        causes.append(("FieldValueInvalid", "metadata.labels", message))
    return causes


def _bad_key(field: str, key: str) -> tuple[str, str, str]:
    rule = "name part must consist of alphanumeric characters, '-', '_' or '.'"
    return "FieldValueInvalid", field, f'Invalid value: "{key}": {rule}'
