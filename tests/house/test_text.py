"""What no tracked file may say, and what every public function must."""

import ast
import re
import subprocess
from pathlib import Path

# Bracketed letters keep these patterns from finding themselves.
INDEX_HOST = re.compile(r"pypi[.]org|python[h]osted[.]|npm[j]s[.]|deb[.]debian[.]")
MACHINE_PATH = re.compile(r"(?<![\w.$~}])/(wor[k]|roo[t]|far[m]|tm[p])/")
UNFINISHED = re.compile(r"TOD[O]|FIXM[E]|XX[X]|NotImplementedErro[r]|placeholde[r]")
SKIP = re.compile(r"pytest[.](ski[p]|mark[.]ski[p]|mark[.]xfai[l]|importorski[p])")


def _tracked(repository: Path, *patterns: str) -> list[Path]:
    said = subprocess.run(
        ["git", "ls-files", "-z", *patterns], cwd=repository, capture_output=True, check=True
    )
    paths = [repository / name for name in said.stdout.decode().split("\0") if name]
    assert paths
    return [path for path in paths if path.is_file()]


def _lines_with(pattern: re.Pattern[str], paths: list[Path]) -> list[str]:
    found = []
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        lines = enumerate(text.splitlines(), 1)
        found += [f"{path}:{n}: {line[:120]}" for n, line in lines if pattern.search(line)]
    return found


def test_no_file_names_an_index_host(repository: Path):
    assert _lines_with(INDEX_HOST, _tracked(repository)) == []


def test_no_file_names_a_path_of_one_machine(repository: Path):
    assert _lines_with(MACHINE_PATH, _tracked(repository)) == []


def test_nothing_in_the_sources_is_called_done_that_is_not(repository: Path):
    assert _lines_with(UNFINISHED, _tracked(repository, "src")) == []


def test_no_test_skips_itself(repository: Path):
    assert _lines_with(SKIP, _tracked(repository, "tests")) == []


def test_every_public_function_says_what_it_does(repository: Path):
    silent = []
    for path in sorted((repository / "src").rglob("*.py")):
        tree = ast.parse(path.read_text())
        functions = [n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
        silent += [
            f"{path}:{node.lineno} {node.name}"
            for node in functions
            if not node.name.startswith("_") and ast.get_docstring(node) is None
        ]
        if tree.body and ast.get_docstring(tree) is None:
            silent.append(str(path))
    assert silent == []
