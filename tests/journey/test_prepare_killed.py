"""A preparation that is killed, at whatever part, goes on there and ends with the same bytes."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from journey.process import REPOSITORY, environment, result_of, shoal
from journey.tiny import write_text
from shoal.core.artifact import load

RECIPE = f"{Path(__file__).with_name('tiny.py')}:topical"
# Dies with the second part or artifact written whole, but without its mark or manifest. The names
# of those before it that this process made go to a file.
_KILLED = """
import os, signal, sys
from shoal.core import files
from shoal.data import shards, source
shards.SHARD_BYTES = source.SHARD_BYTES = int(sys.argv[1])
listing, left = files.listing, [2]
def dying(folder):
    name, making, _ = folder.name.partition(files.TEMPORARY)
    left[0] -= bool(making)
    if making and left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if making:
        with open(sys.argv[2], "a") as log:
            print(folder.parent.name + "/" + name, file=log)
    return listing(folder)
if sys.argv[3] == "die":
    files.listing = dying
from shoal.cli import main
sys.exit(main(sys.argv[4:]))
"""
SHARD_BYTES = 50_000


def contents(home):
    """Artifact -> file -> its digest; facts and provenance hold times."""
    found = {path.name: load(path) for path in (home / "corpora").iterdir() if path.is_dir()}
    return {
        name: {file: entry["sha256"] for file, entry in one.manifest["files"].items()}
        for name, one in found.items()
        if not name.startswith("text@")
    }


def prepare(log, how, seen):
    words = (SHARD_BYTES, log, how, "prepare", RECIPE, "--json")
    return subprocess.run(
        [sys.executable, "-c", _KILLED, *map(str, words)],
        env=seen, cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_killed_at_every_part_it_ends_with_the_same_files(tmp_path):
    text = write_text(tmp_path / "text", num_files=90, file_bytes=900)
    straight = environment(tmp_path / "straight", text=text)
    assert result_of(shoal("prepare", RECIPE, "--json", seen=straight))["cells"]
    expected = contents(tmp_path / "straight")
    assert len(expected) >= 13
    seen, log = environment(tmp_path / "killed", text=text), tmp_path / "made"
    deaths = 0
    # Each process makes one part or artifact, and dies at the next; the last one makes the last.
    while (done := prepare(log, "die", seen)).returncode:
        assert done.returncode == -signal.SIGKILL, done.stderr
        deaths += 1
        assert len(log.read_text().splitlines()) == deaths
    made = log.read_text().splitlines()
    assert len(made) == len(set(made)), "a finished part is not made again"
    # Two shards of each of seven streams, and what the documents of a source are merged to.
    assert sum("+" in name for name in made) == 14
    assert len(made) == len(expected) + 1 + 14 + 1
    assert contents(tmp_path / "killed") == expected
    assert not list((tmp_path / "killed" / "corpora").glob(".*"))
