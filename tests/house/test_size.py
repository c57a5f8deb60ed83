"""Small files, small functions."""

import ast
from pathlib import Path

MAX_FILE_LINES = 450
MAX_FUNCTION_LINES = 60


def _sources(repository: Path) -> list[Path]:
    found = sorted((repository / "src").rglob("*.py"))
    assert found
    return found


def test_no_file_is_over_450_lines(repository: Path):
    lengths = {p: len(p.read_text().splitlines()) for p in _sources(repository)}
    assert {str(p): n for p, n in lengths.items() if n > MAX_FILE_LINES} == {}


def test_no_function_is_over_60_lines(repository: Path):
    long = {}
    for path in _sources(repository):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = node.end_lineno - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    long[f"{path}:{node.lineno} {node.name}"] = lines
    assert long == {}
