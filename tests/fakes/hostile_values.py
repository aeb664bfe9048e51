"""Hypothesis strategies for hostile input, and settings that draw the same examples in each run."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings, strategies as st

#: Short and the same in every run. A larger number is tried by `make attack`.
HOSTILE = settings(
    max_examples=15,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
SELF_CONTAINING: list[Any] = []
SELF_CONTAINING.append(SELF_CONTAINING)


class _Bomb(list[Any]):
    """A list that Hypothesis can print when a test fails with it."""

    def __repr__(self) -> str:
        return "BOMB"


#: 2^30 values in a few references.
BOMB: list[Any] = ["x"]
for _ in range(30):
    BOMB = _Bomb([BOMB, BOMB])


def build_scalars(strings: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """Return a strategy for null, booleans, numbers at the limits of their types, and these strings."""
    return st.one_of(
        st.none(),
        st.booleans(),
        st.sampled_from([0, 1, -1, 2**31, 2**53 + 1, 10**30, 10**400]),
        st.sampled_from([0.5, 1e308, float("nan"), float("inf"), -0.0]),
        strings,
    )


def build_plain_data(strings: st.SearchStrategy[str], keys: st.SearchStrategy[str] | None = None) -> Any:
    """Return a strategy for nested data as JSON has it."""
    names = strings if keys is None else keys
    return st.recursive(
        build_scalars(strings),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
        max_leaves=8,
    )
