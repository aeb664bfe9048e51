"""mkdocs hooks: the reference of the command comes from its Typer app, Contributing from the root folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer
from typer.cli import get_docs_for_click

from trainer_core.cli.app import create_app

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

__all__ = ["on_page_markdown"]


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace ``<!-- commands -->`` by the help of every subcommand; links of CONTRIBUTING.md start in the root.

    The search lists guides before the reference, and that before decisions and explanations.
    """
    folder = page.file.src_uri.partition("/")[0]
    page.meta["search"] = {"boost": {"guides": 4, "reference": 1, "kfp": 1}.get(folder, 0.5)}
    if page.file.src_uri == "contributing.md":
        return Path("CONTRIBUTING.md").read_text(encoding="utf-8").replace("](docs/", "](")
    if "<!-- commands -->" not in markdown:
        return markdown
    command = typer.main.get_command(create_app())
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="trainjob", title="Commands")
    text = text.replace("][", "]\\[")  # "KEY[=VALUE][:effect]" is no Markdown link
    # One level down: the page has a title already.
    return markdown.replace("<!-- commands -->", text.replace("\n#", "\n##").replace("# Commands", "## Commands", 1))
