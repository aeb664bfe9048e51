"""Result → ClassificationMetrics: the confusion matrix and the ROC curve that a training function returns.

Such as::

    {"confusion_matrix": {"labels": ["cat", "dog"], "matrix": [[9, 1], [2, 8]]},
     "roc": {"fpr": [0, 0.1, 1], "tpr": [0, 0.8, 1], "thresholds": [2, 0.5, 0]}}
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

#: Stands for an infinite threshold.
_HIGHEST = 1e9


def build_metadata(result: Any) -> dict[str, Any]:
    """Return the metadata of the artifact; nothing of what is not in the result, or has no such shape."""
    given = result if isinstance(result, Mapping) else {}
    metadata: dict[str, Any] = {}
    for key, read, name in (
        ("confusion_matrix", _build_confusion_matrix, "confusionMatrix"),
        ("roc", _build_confidence_metrics, "confidenceMetrics"),
    ):
        if key not in given:
            continue
        try:
            metadata[name] = read(given[key])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            # It is a picture of the result, which is an output whatever it contains.
            print(f"the result's {key!r} cannot be shown: {type(error).__name__}: {error}")
    return metadata


def _build_confusion_matrix(given: Mapping[str, Any]) -> dict[str, Any]:
    rows = [[_parse_number(value) for value in row] for row in given["matrix"]]
    labels = [str(label) for label in given.get("labels") or range(len(rows))]
    if any(length != len(labels) for length in (len(rows), *map(len, rows))):
        raise ValueError(f"a matrix of {len(labels)} labels has as many rows and columns")
    return {"annotationSpecs": [{"displayName": label} for label in labels], "rows": [{"row": row} for row in rows]}


def _build_confidence_metrics(given: Mapping[str, Any]) -> list[dict[str, float]]:
    columns = [
        _parse_thresholds(given["thresholds"]),
        *([_parse_number(value) for value in given[name]] for name in ("tpr", "fpr")),
    ]
    if len({len(column) for column in columns}) != 1:
        raise ValueError("thresholds, tpr and fpr differ in length")
    names = ("confidenceThreshold", "recall", "falsePositiveRate")
    return [dict(zip(names, point, strict=True)) for point in zip(*columns, strict=True)]


def _parse_thresholds(values: Sequence[Any]) -> list[float]:
    """The first threshold of scikit-learn's `roc_curve` is infinite, which the result of a TrainJob holds as null."""
    first = [_HIGHEST] if values[:1] == [None] else []
    return [*first, *(_parse_number(value) for value in values[len(first) :])]


def _parse_number(value: Any) -> float:
    number = float(value)
    if math.isnan(number):
        raise ValueError("NaN is not a number")
    # KFP's launcher refuses infinity in metadata.
    return max(-_HIGHEST, min(_HIGHEST, number))
