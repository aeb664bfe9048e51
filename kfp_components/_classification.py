"""Result → ClassificationMetrics: the confusion matrix and the ROC curve that a training function returns.

Such as::

    {"confusion_matrix": {"labels": ["cat", "dog"], "matrix": [[9, 1], [2, 8]]},
     "roc": {"fpr": [0, 0.1, 1], "tpr": [0, 0.8, 1], "thresholds": [2, 0.5, 0]}}
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["metadata"]


def metadata(result: Any) -> dict[str, Any]:
    """Return the metadata of the artifact; nothing of what is not in the result, or has no such shape."""
    given = result if isinstance(result, Mapping) else {}
    found: dict[str, Any] = {}
    for key, read, name in (
        ("confusion_matrix", _matrix, "confusionMatrix"),
        ("roc", _roc, "confidenceMetrics"),
    ):
        if key not in given:
            continue
        try:
            found[name] = read(given[key])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            # It is a picture of the result, which is handed over whatever it looks like.
            print(f"the result's {key!r} cannot be shown: {type(error).__name__}: {error}", flush=True)
    return found


def _matrix(given: Mapping[str, Any]) -> dict[str, Any]:
    rows = [[_number(value) for value in row] for row in given["matrix"]]
    labels = [str(label) for label in given.get("labels") or range(len(rows))]
    if any(length != len(labels) for length in (len(rows), *map(len, rows))):
        raise ValueError(f"a matrix of {len(labels)} labels has as many rows and columns")
    return {"annotationSpecs": [{"displayName": label} for label in labels], "rows": [{"row": row} for row in rows]}


def _roc(given: Mapping[str, Any]) -> list[dict[str, float]]:
    columns = [[_number(value) for value in given[name]] for name in ("thresholds", "tpr", "fpr")]
    if len({len(column) for column in columns}) != 1:
        raise ValueError("thresholds, tpr and fpr differ in length")
    names = ("confidenceThreshold", "recall", "falsePositiveRate")
    return [dict(zip(names, point, strict=True)) for point in zip(*columns, strict=True)]


def _number(value: Any) -> float:
    """A finite number: the first threshold of scikit-learn's roc_curve is infinite, and JSON has no such thing."""
    number = float(value)
    if math.isnan(number):
        raise ValueError("NaN is no number")
    return max(-1e9, min(1e9, number))
