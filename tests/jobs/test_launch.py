import json
import re
import shlex
from pathlib import Path

import pytest

from shoal.cli import main
from shoal.jobs.launch import launch

MINE = """
from shoal.core.config import replace
from shoal.recipes.quickstart import quickstart

def Mine_2():
    return replace(quickstart(), "name", "Mine 2")
"""


def test_without_a_place_for_it_the_file_is_printed_alone(capsys):
    words = ["launch", "slurm", "quickstart", "--nodes", "2", "--gpus-per-node", "2"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert said.startswith("#!/bin/bash\n")
    assert said.endswith('scontrol requeue "$SLURM_JOB_ID"\n')
    assert " train quickstart --run quickstart &\n" in said


def test_a_sealed_forecast_goes_with_the_command(capsys):
    words = ["launch", "slurm", "quickstart", "--nodes", "1", "--gpus-per-node", "1", "--forecast"]
    assert main([*words, "my seal.json"]) == 0
    said = capsys.readouterr().out
    assert " train quickstart --run quickstart --forecast 'my seal.json' &\n" in said
    assert main([*words, "two\nlines"]) == 2


@pytest.mark.parametrize(
    ("options", "submit"),
    [
        ("slurm", "sbatch"),
        ("jobset --image reg/shoal:1", "kubectl apply -f"),
        ("skypilot --gpu H100", "sky jobs launch"),
    ],
)
def test_the_file_is_written_and_how_to_submit_it_is_said(options, submit, tmp_path, capsys):
    out = tmp_path / "file"
    words = f"launch {options} quickstart --nodes 2 --gpus-per-node 2 --out {out}".split()
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "4 devices: replica 1, data 4, expert 1, context 1" in said
    assert f"submit it: {submit} {out}" in said
    assert "quickstart" in out.read_text()
    assert main([*words, "--json"]) == 0  # written by it before: written anew
    assert json.loads(capsys.readouterr().out)["text"] == out.read_text()


def test_a_file_that_is_not_from_here_is_not_overwritten(tmp_path: Path):
    out = tmp_path / "mine.sh"
    out.write_text("precious\n")
    with pytest.raises(ValueError, match="is there already and not from here"):
        launch("slurm", "quickstart", nodes=1, gpus_per_node=1, out=out)
    assert out.read_text() == "precious\n"


def test_names_follow_the_recipe_the_run_and_what_clusters_allow(tmp_path: Path):
    recipe = tmp_path / "mine.py"
    recipe.write_text(MINE)
    made = launch("slurm", f"{recipe}:Mine_2", nodes=1, gpus_per_node=1)
    assert made["run"] == "Mine 2"
    assert "#SBATCH --job-name=mine-2\n" in made["text"]
    assert f"train {recipe}:Mine_2 --run 'Mine 2'" in made["text"]
    long = launch("slurm", "quickstart", nodes=1, gpus_per_node=1, run="Run" * 20 + "_x")
    assert f"#SBATCH --job-name={'run' * 13}r\n" in long["text"]
    assert (
        "name=other\n"
        in launch("slurm", "quickstart", nodes=1, gpus_per_node=1, name="other")["text"]
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("slurm quikstart --nodes 1 --gpus-per-node 1", "quickstart"),
        ("slurm quickstart --nodes 1 --gpus-per-node 1 --set train.sede=1", "seed"),
        ("slurm quickstart --nodes 2 --gpus-per-node 2 --set mesh.expert=8", "expert=8"),
        ("slurm quickstart --nodes 0 --gpus-per-node 2", "nodes=0"),
        ("jobset quickstart --nodes 1 --gpus-per-node 2", "--image"),
        ("slurm quickstart --nodes 1 --gpus-per-node 2 --time soon", "time 'soon'"),
    ],
)
def test_what_would_fail_on_the_cluster_is_refused_here(words, said, capsys):
    assert main(["launch", *words.split()]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert said in error


def test_every_file_that_the_page_on_clusters_asks_for_is_written(
    repository: Path, tmp_path: Path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    page = (repository / "docs" / "clusters.md").read_text()
    commands = re.findall(r"^shoal (launch .*)", page, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        assert main(shlex.split(command)) == 0


def test_an_unknown_cluster_is_refused(capsys):
    with pytest.raises(ValueError, match="use one of slurm, jobset, skypilot"):
        launch("pbs", "quickstart", nodes=1, gpus_per_node=1)
    with pytest.raises(SystemExit):
        main(["launch", "pbs", "quickstart", "--nodes", "1", "--gpus-per-node", "1"])
    assert "invalid choice" in capsys.readouterr().err


def test_what_could_not_start_is_not_queued(capsys):
    words = ["launch", "slurm", "quickstart", "--nodes", "2", "--gpus-per-node", "4"]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert (
        "train.batch_sequences=4 is not divisible by the mesh's replica x data x expert = 8" in said
    )
