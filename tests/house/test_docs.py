"""Each command that the front pages show is one that exists."""

import re
import shlex
from pathlib import Path

import pytest

from shoal.cli import build_parser

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ["README.md", "CONTRIBUTING.md", *(f"docs/{page.name}" for page in DOCS.glob("*.md"))]
FENCE = re.MULTILINE | re.DOTALL


def _commands(page: Path, program: str) -> list[str]:
    """Return the commands of a program in code fences and in inline code."""
    text = page.read_text()
    fenced = "\n".join(re.findall(r"^```[^\n]*\n(.*?)^```", text, FENCE))
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=FENCE))
    start = re.compile(rf"^\s*(?:\$ )?(?:[\w.]+/bin/)?({program} [^#\n]*)", re.MULTILINE)
    return [found for piece in [fenced, *inline] for found in start.findall(piece)]


@pytest.mark.parametrize("page", PAGES)
def test_every_shoal_command_shown_is_understood(repository: Path, page: str):
    for command in _commands(repository / page, "shoal"):
        words = shlex.split(re.split(r"[|>&;]", command)[0])[1:]
        if words != ["--version"]:
            build_parser().parse_args(words)


@pytest.mark.parametrize("page", PAGES)
def test_every_make_target_shown_exists(repository: Path, page: str):
    targets = set(re.findall(r"^([a-z-]+):", (repository / "Makefile").read_text(), re.MULTILINE))
    for command in _commands(repository / page, "make"):
        words = [word for word in command.split()[1:] if "=" not in word]
        assert set(words) <= targets, command
