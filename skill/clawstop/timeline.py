"""How a story is shown: a table in the terminal, or the same as an SVG picture."""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .demo import Story
from .words import say

WIDTH = 108  # fits a README picture and most terminals


def table(story: Story) -> Table:
    grid = Table(title=say("demo_title"), title_style="bold", expand=False)
    grid.add_column("ms", justify="right", style="dim")
    grid.add_column("")
    grid.add_column("")
    styles = {
        say("demo_person"): "bold yellow",
        say("demo_agent"): "cyan",
        say("demo_clawstop"): "bold green",
    }
    for line in story.lines:
        text = Text(line.text, style="bold red" if line.text.startswith("clawstop stop") else "")
        grid.add_row(f"{line.ms:+d}", Text(line.who, style=styles.get(line.who, "")), text)
    return grid


def show(story: Story, picture: Path | None = None) -> None:
    """Print the story; with `picture`, write it as an SVG too."""
    console = Console(width=WIDTH, highlight=False)
    console.print(table(story))
    for failure in story.failures:
        console.print(say("demo_failed", text=failure), style="bold red", markup=False)
    if not story.failures:
        console.print(say("demo_good"), style="bold")
    if picture is not None:
        paper = Console(width=WIDTH, record=True, file=io.StringIO(), highlight=False)
        paper.print(table(story))
        svg = paper.export_svg(title="clawstop demo")
        # Fonts from the network: a picture must not phone anybody.
        svg = re.sub(r"@font-face\s*{[^}]*}\s*", "", svg)
        picture.write_text(svg, encoding="utf-8")
