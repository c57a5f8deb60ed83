"""What a user gets wrong, on the command line: one clear line, exit status 2, no traceback."""

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from journey.process import SHOAL, environment, refusal_of
from shoal.cli import main

LINES = [
    ("train quikstart", "unknown recipe 'quikstart'; nearest: quickstart"),
    ("show nowhere.py:tiny", "recipe file nowhere.py does not exist; give path.py:function"),
    ("train quickstart --set train.num_step=5", "unknown setting 'train.num_step'; nearest: "),
    ("train quickstart --set train.num_steps=five", "train.num_steps=five is not a whole number"),
    ("count flagship --set model.remat=maybe", "model.remat=maybe is not true or false"),
    ("quickstart --set model.experts=fast", "is not one of auto, blocks, dense, ragged"),
    ("quickstart --set optimizer.muon_lr=nan", "optimizer.muon_lr=nan is not a number or none"),
    ("train quickstart --set train", "--set 'train' is not PATH=VALUE"),
    ("quickstart --set train=5", "train is a group of settings; set one of its values"),
    ("train quickstart --set train.num_steps=0", "train.num_steps=0 must be at least 1"),
    ("train quickstart --set train.sequence_tokens=300", "is not a multiple of train.sequence"),
    ("eval nothing", "no run 'nothing'"),
    ("report nothing", "no run 'nothing'"),
    ("hash nothing", "no run 'nothing'"),
    ("generate nothing", "no run 'nothing'"),
    ("quickstart --text nowhere", "nowhere is not there; give a folder of text files"),
]


@pytest.mark.parametrize(("line", "says"), LINES)
def test_a_mistake_is_one_line_that_says_what_to_do(line, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(line.split()) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert len(said.err.splitlines()) == 1
    assert says in said.err
    runs = tmp_path / "shoal-home" / "runs"
    assert not runs.exists(), "nothing is begun"


VERBS = ["quickstart", "prepare d512", "train d512", "eval r", "report r", "generate r", "hash r"]


@pytest.mark.parametrize("line", VERBS)
def test_a_home_that_is_a_file_is_named_and_left_alone(line, capsys, tmp_path, monkeypatch):
    home = tmp_path / "taken"
    home.write_text("mine")
    monkeypatch.setenv("SHOAL_HOME", str(home))
    assert main(line.split()) == 2
    said = capsys.readouterr().err
    assert said == f"error: SHOAL_HOME={home} is a file; set SHOAL_HOME to a folder\n"
    assert home.read_text() == "mine"


@pytest.mark.parametrize("line", VERBS)
def test_a_home_that_cannot_be_made_is_named(line, capsys, tmp_path, monkeypatch):
    (tmp_path / "taken").write_text("mine")
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "taken" / "home"))
    assert main(line.split()) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert f"error: SHOAL_HOME={tmp_path}/taken/home cannot be written (Not a directory)" in said
    assert "set SHOAL_HOME to a folder you own" in said


def test_a_home_without_permission_is_named(capsys, monkeypatch):
    """Root passes every permission, so for root the process looks as somebody else."""
    root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders let nobody else pass
        home = Path(folder)
        home.chmod(0o555)
        monkeypatch.setenv("SHOAL_HOME", folder)
        if root:
            os.seteuid(65534)
        try:
            status = main(["hash", "r"])
        finally:
            if root:
                os.seteuid(0)
            home.chmod(0o755)
    assert status == 2
    assert capsys.readouterr().err == (
        f"error: SHOAL_HOME={home} cannot be written (Permission denied);"
        " set SHOAL_HOME to a folder you own\n"
    )


def test_a_process_says_the_same_as_its_function(tmp_path):
    done = subprocess.run(
        [SHOAL, "train", "quikstart"],
        env=environment(tmp_path / "home"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "unknown recipe 'quikstart'; nearest: quickstart" in refusal_of(done)
    assert done.stderr.count("\n") == 1
