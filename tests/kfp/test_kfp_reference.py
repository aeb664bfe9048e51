"""docs/kfp: a page for each component, made from its signature."""

from __future__ import annotations

import subprocess
import sys

import pytest
from kfp_driver import COMPONENTS, REPOSITORY, component_spec

PAGES = REPOSITORY / "docs" / "kfp"
NAMES = sorted(path.stem for path in COMPONENTS.glob("*.yaml"))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The pages as the script makes them now."""
    folder = tmp_path_factory.mktemp("pages")
    subprocess.run([sys.executable, REPOSITORY / "tools" / "kfp_reference.py", "--output", folder], check=True)
    return folder


@pytest.mark.parametrize("name", ["index", *NAMES])
def test_the_committed_page_is_what_the_signature_gives(made, name):
    assert (PAGES / f"{name}.md").read_text() == (made / f"{name}.md").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_the_page_of_a_component_has_all_its_inputs_and_outputs(name):
    spec = component_spec(name)
    definitions = [spec["inputDefinitions"], spec["outputDefinitions"]]
    names = {key for part in definitions for kind in part.values() for key in kind}

    page = (PAGES / f"{name}.md").read_text()

    assert {key for key in names if f"\n| `{key}` |" not in page} == set()
