"""The test session keeps its own promises."""

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import jax
import pytest

# Spelled apart: no test of ours may say these words.
TESTS = """
import pytest

def test_fine():
    pass

def test_skipped():
    getattr(pytest, "sk" "ip")("not today")

@getattr(pytest.mark, "xf" "ail")
def test_expected():
    assert False
"""


def test_a_test_that_does_not_count_fails_the_session(tmp_path: Path, repository: Path):
    for name in ("tests/conftest.py", "tests/typecheck.py", "pyproject.toml"):
        shutil.copy(repository / name, tmp_path)
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-o", "pythonpath=.", "test_it.py"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 passed, 1 skipped, 1 xfailed" in said.stdout, said.stdout + said.stderr
    assert "COUNTS AS FAILED test_it.py::test_skipped" in said.stdout
    assert "COUNTS AS FAILED test_it.py::test_expected" in said.stdout
    assert said.returncode == 1


def test_a_connection_to_elsewhere_is_refused():
    with pytest.raises(OSError, match="mark it `network`"):
        socket.create_connection(("192.0.2.1", 80), timeout=1)


def test_jax_runs_on_eight_fake_devices_and_guesses_no_dtype_or_rank():
    assert jax.device_count() == 8
    assert jax.devices()[0].platform == "cpu"
    with pytest.raises(Exception, match="promotion"):
        jax.numpy.ones(2, "int32") + jax.numpy.ones(2, "float32")
    with pytest.raises(ValueError, match="rank_promotion"):
        jax.numpy.ones(2) + jax.numpy.ones((2, 2))
