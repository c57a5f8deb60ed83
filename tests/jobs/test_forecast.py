"""`shoal forecast`: the public numbers, a file beside the ladder, nothing sealed changed."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from scaling.ladders import made
from shoal.core.files import home
from shoal.jobs.forecast import FORECAST, forecast_ladder, parse_asymptote, render
from shoal.scaling.forecast import forecast, read_forecast
from shoal.scaling.records import Ladder
from shoal.scaling.seal import SEAL


def written(ladder: Ladder) -> Path:
    """The folder of a ladder under SHOAL_HOME."""
    folder = home() / "forecasts" / ladder.name
    folder.mkdir(parents=True)
    (folder / "ladder.json").write_text(json.dumps(ladder.plain()))
    return folder


def test_the_public_run_as_json():
    probe = "import sys; from shoal.cli import main; code = main(sys.argv[1:]);"
    probe += "print('jax' in sys.modules, file=sys.stderr); sys.exit(code)"
    command = [sys.executable, "-c", probe, "forecast", "public-535b", "--json"]
    said = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ})
    assert said.returncode == 0, said.stderr
    assert said.stderr.strip() == "False"
    found = json.loads(said.stdout)
    assert found["central"] == pytest.approx(2.0378, abs=1e-4)
    assert found["alpha"] == pytest.approx(0.0901, abs=1e-4)
    assert found["E"] == 1.5
    assert found["A"] == pytest.approx(85.28, abs=0.01)
    low, high = found["interval_90"]
    assert low < found["interval_50"][0] < found["central"] < found["interval_50"][1] < high
    assert set(found["parts"]) == {"residual", "seed", "leave_one_out", "asymptote", "form"}
    assert found["forecast"]["series"]["paloma/macro/loss"]["central"][:19] == [None] * 19
    assert not (home() / "forecasts").exists()


def test_the_public_run_as_text():
    text = render(forecast_ladder("public-535b"))
    for piece in ("2.0378", "2.001 to 2.084", "1.982", "outside 90 %", "2.002", "1.21x"):
        assert piece in text


def test_an_asymptote_is_taken_as_given():
    assert forecast_ladder("public-535b", "1.4")["central"] == pytest.approx(2.0184, abs=1e-4)
    ranged = forecast_ladder("public-535b", "1.3:1.7")
    assert 1.3 <= ranged["E"] <= 1.7
    assert forecast_ladder("public-535b", "free")["forecast"]["settings"]["asymptote"] is None
    assert parse_asymptote("1.3:1.7") == (1.3, 1.7)
    for wrong in ("low", "1.7:1.3", "-1", "1:2:3", ""):
        with pytest.raises(ValueError, match="a range"):
            parse_asymptote(wrong)


def test_a_ladder_by_name_or_path_gets_its_forecast_beside_it():
    ladder = made(noise=0.003)
    folder = written(ladder)
    expected = forecast(ladder)
    for name in ("made", str(folder), str(folder / "ladder.json")):
        (folder / FORECAST).unlink(missing_ok=True)
        found = forecast_ladder(name)
        assert found["file"] == str(folder / FORECAST)
        assert found["central"] == expected.headline.central[-1]
        assert read_forecast(folder / FORECAST) == expected
    text = render(found)
    assert "sources/owt/bpb" in text
    assert "back-test" in text


def test_a_sealed_forecast_is_written_again_only_if_it_is_the_same():
    folder = written(made(noise=0.003))
    forecast_ladder("made")
    (folder / SEAL).write_text("{}")
    before = (folder / FORECAST).read_bytes()
    forecast_ladder("made")
    with pytest.raises(ValueError, match="sealed and would change"):
        forecast_ladder("made", "0.6")
    assert (folder / FORECAST).read_bytes() == before


def test_what_is_not_there_or_not_finished_is_said():
    written(made())
    with pytest.raises(ValueError, match=r"no ladder 'mad' .*there are: public-535b, made"):
        forecast_ladder("mad")
    ladder = made("short")
    runs = tuple(
        replace(run, series={n: (*v[:10], *(None,) * 10) for n, v in run.series.items()})
        for run in ladder.runs
    )
    written(replace(ladder, runs=runs))
    with pytest.raises(ValueError, match="fewer than three rungs have 'sources/macro/bpb' at"):
        forecast_ladder("short")
