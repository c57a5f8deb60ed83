"""`shoal hash`: one digest of the newest complete state, from its bytes."""

import shutil

import pytest

from shoal.jobs.hash import hash_run
from shoal.train import checkpoint


def test_the_digest_is_of_the_newest_state_and_is_the_one_that_was_recorded(copied):
    run = copied()
    found = hash_run("tiny")
    assert found == {
        "run": str(run),
        "step": 12,
        "digest": checkpoint.manifest_of(run, 12)["digest"],
    }
    assert hash_run(str(run)) == found
    older = checkpoint.manifest_of(run, 8)["digest"]
    shutil.rmtree(run / "checkpoints/12")
    assert hash_run("tiny")["digest"] == older != found["digest"]


def test_a_state_that_is_not_what_was_saved_has_no_digest(copied):
    run = copied()
    files = (path for path in (run / "checkpoints/12/state").rglob("*") if path.is_file())
    largest = max(files, key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)
    with pytest.raises(ValueError, match="has other bytes than were saved"):
        hash_run("tiny")


def test_a_run_without_a_checkpoint_has_no_digest(copied):
    run = copied()
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(ValueError, match="run tiny has no complete checkpoint yet"):
        hash_run("tiny")
    with pytest.raises(ValueError, match=r"no run 'tyni' .* there are: tiny"):
        hash_run("tyni")
