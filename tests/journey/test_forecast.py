"""A stranger's path: a ladder, its forecast, a seal, the run, its settlement; all of it checked."""

import json

import pytest

from journey.process import RECIPE, environment, refusal_of, result_of, shoal
from journey.tiny import write_text

FILE = RECIPE.partition(":")[0]
LADDER, TARGET = f"{FILE}:tiny_ladder", f"{FILE}:tiny_target"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_forecast_is_sealed_before_the_run_and_settled_after_and_verifies(tmp_path):
    seen = environment(tmp_path / "home", text=write_text(tmp_path / "text"))

    def run(*words):
        return result_of(shoal(*words, "--json", seen=seen))

    stopped = shoal("ladder", LADDER, seen=seen, stop_at=15)
    assert stopped.returncode != 0
    climbed = run("ladder", LADDER)
    assert len(climbed["runs"]) == 4
    assert run("ladder", LADDER)["reused"] is True
    said = run("forecast", "tiny-ladder")
    low, high = said["interval_90"]
    assert low < said["central"] < high
    sealed = run("seal", "tiny-ladder")
    assert sealed["sha256"] in sealed["line"]

    refusal_of(shoal("train", RECIPE, "--forecast", "tiny-ladder", seen=seen))
    trained = run("train", TARGET, "--forecast", "tiny-ladder")
    assert trained["step"] == 80
    run("eval", "tiny-target")
    events = (tmp_path / "home/runs/tiny-target/events.jsonl").read_text().splitlines()
    first = json.loads(events[0])
    assert (first["kind"], first["sha256"]) == ("seal", sealed["sha256"])

    settled = run("settle", "tiny-target")
    assert settled["retroactive"] is None
    assert settled["premises"] == []
    assert settled["headline"]["central"] == said["central"]
    assert settled["miss"] == (not low <= settled["headline"]["seen"] <= high)
    (listed,) = run("forecast", "--list")["forecasts"]
    assert listed["outcome"]["error"] == settled["headline"]["error"]
    for what in ("tiny-target", "tiny-ladder"):
        done = shoal("verify", what, "--json", seen=seen)
        found = result_of(done)
        assert found["ok"], [line for line in found["lines"] if line["state"] == "fails"]
        assert found["counts"]["holds"] > 5

    other = shoal("settle", "tiny-ladder-d8-seed0", "--forecast", "tiny-ladder", seen=seen)
    assert "fingerprint" in refusal_of(other)
    path = tmp_path / "home/forecasts/tiny-ladder/seal.json"
    path.write_text(path.read_text().replace(f'"seed": {0}', f'"seed": {7}', 1))
    assert shoal("verify", "tiny-ladder", seen=seen).returncode == 1
