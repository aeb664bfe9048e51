"""Logistic regression by gradient descent, with the standard library."""

from __future__ import annotations

import math

__all__ = ["fit_epoch", "measure", "predict"]


def predict(weights: list[float], features: list[float]) -> float:
    """Return the probability that a customer leaves; the last weight is the intercept."""
    score = sum(weight * value for weight, value in zip(weights, [*features, 1.0], strict=True))
    return 1 / (1 + math.exp(-score))


def fit_epoch(weights: list[float], rows: list[list[float]], labels: list[int], learning_rate: float) -> list[float]:
    """Return the weights after one pass over all customers."""
    for features, label in zip(rows, labels, strict=True):
        step = learning_rate * (predict(weights, features) - label)
        weights = [weight - step * value for weight, value in zip(weights, [*features, 1.0], strict=True)]
    return weights


def measure(weights: list[float], rows: list[list[float]], labels: list[int]) -> dict[str, float]:
    """Return loss and accuracy."""
    found = [predict(weights, features) for features in rows]
    losses = [-math.log(value if label else 1 - value) for value, label in zip(found, labels, strict=True)]
    hits = sum((value > 0.5) == bool(label) for value, label in zip(found, labels, strict=True))
    return {"loss": sum(losses) / len(rows), "accuracy": hits / len(rows)}
