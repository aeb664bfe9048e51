"""Skips tests whose packages are missing, without importing them: torch alone takes seconds of each pytest worker."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def requires(*modules: str) -> pytest.MarkDecorator:
    """Return the mark that skips a test, or the tests of a file, unless all packages are installed."""
    missing = [module for module in modules if find_spec(module) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")
