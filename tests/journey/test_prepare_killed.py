"""A preparation that is killed, at whatever artifact, goes on and ends with the same bytes."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from journey.process import REPOSITORY, environment, result_of, shoal
from journey.tiny import write_text
from shoal.core.artifact import load

RECIPE = f"{Path(__file__).with_name('tiny.py')}:topical"
# Dies with the n-th artifact written whole, but without its manifest.
_KILLED = """
import os, signal, sys
from shoal.core import artifact
listing, left = artifact._listing, [int(sys.argv[1])]
def dying(folder):
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return listing(folder)
artifact._listing = dying
from shoal.cli import main
sys.exit(main(sys.argv[2:]))
"""


def contents(home):
    """Artifact -> file -> its digest; facts and provenance hold times."""
    found = {path.name: load(path) for path in (home / "corpora").iterdir() if path.is_dir()}
    return {
        name: {file: entry["sha256"] for file, entry in one.manifest["files"].items()}
        for name, one in found.items()
        if not name.startswith("text@")
    }


@pytest.mark.slow
def test_killed_at_every_artifact_it_ends_with_the_same_files(tmp_path):
    text = write_text(tmp_path / "text", num_files=90, file_bytes=900)
    straight = environment(tmp_path / "straight", text=text)
    assert result_of(shoal("prepare", RECIPE, "--json", seen=straight))["cells"]
    expected = contents(tmp_path / "straight")
    assert len(expected) >= 13
    seen = environment(tmp_path / "killed", text=text)
    deaths = 0
    for _ in range(len(expected) + 5):
        # The first artifact that is still to be made; those before are found.
        done = subprocess.run(
            [sys.executable, "-c", _KILLED, "1", "prepare", RECIPE, "--json"],
            env=seen, cwd=REPOSITORY, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        deaths += 1
        # Let that one be made, and die at the next.
        again = subprocess.run(
            [sys.executable, "-c", _KILLED, "2", "prepare", RECIPE, "--json"],
            env=seen, cwd=REPOSITORY, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if again.returncode == 0:
            break
        assert again.returncode == -signal.SIGKILL, again.stderr
        deaths += 1
    assert deaths >= len(expected)
    assert contents(tmp_path / "killed") == expected
