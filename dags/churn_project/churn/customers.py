"""Reads the customers, which are a data file of this package."""

from __future__ import annotations

import csv
from pathlib import Path

__all__ = ["read_customers"]

FILE = Path(__file__).parent / "data" / "customers.csv"


def read_customers() -> tuple[list[list[float]], list[int]]:
    """Return the features of each customer and whether the customer has left."""
    with FILE.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    features = [[float(row["months"]) / 60, float(row["calls"]) / 10, float(row["price"]) / 100] for row in rows]
    return features, [int(row["left"]) for row in rows]
