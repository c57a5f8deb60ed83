"""What is light stays light."""

import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import shoal

# Imports every module of the light packages, the jobs' top levels and the recipes among them.
PROBE = """
import importlib, json, pkgutil, sys
import shoal
light = ("core", "data", "report", "cli", "jobs", "recipes")
names = [
    module.name
    for module in pkgutil.walk_packages(shoal.__path__, "shoal.", onerror=lambda name: None)
    if module.name.split(".")[1] in light
]
guilty = {}
for name in names:
    importlib.import_module(name)
    for heavy in ("jax", "equinox", "optax", "orbax", "daft"):
        if heavy in sys.modules:
            guilty.setdefault(heavy, name)
print(json.dumps({"names": names, "guilty": guilty}))
"""


def test_the_light_modules_never_load_jax(repository: Path):
    said = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, cwd=repository, check=False
    )
    assert said.returncode == 0, said.stderr
    found = json.loads(said.stdout.splitlines()[-1])
    assert {"shoal.cli", "shoal.core.config", "shoal.jobs.doctor"} <= set(found["names"])
    assert found["guilty"] == {}


def test_the_package_itself_holds_its_version_only(repository: Path):
    tree = ast.parse((repository / "src/shoal/__init__.py").read_text())
    kinds = [type(node) for node in tree.body]
    assert kinds == [ast.Expr, ast.Assign]
    assert [name.id for name in tree.body[1].targets] == ["__version__"]


def test_the_version_is_said_once_in_effect(repository: Path):
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    assert project["version"] == shoal.__version__
