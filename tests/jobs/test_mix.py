"""Job `mix`: the mixture that proxies speak for, going on after a kill, ready for `--set`."""

import dataclasses
import json
import math

import pytest

from journey.process import RECIPE
from journey.tiny import topical
from shoal.cli import main
from shoal.core.config import fingerprint, override
from shoal.data.mix import read_weights
from shoal.data.settings import MixConfig
from shoal.jobs import mix as job
from shoal.jobs.resolve import resolve

SEEDS = ["train.seed=0", "data.seed=0"]
TINY, FILE = RECIPE, RECIPE.partition(":")[0]
TOPICAL = f"{FILE}:topical"
FIRST = {f"t00-q{level}" for level in range(5)}


@pytest.fixture
def small(copied, tmp_path, monkeypatch):
    """The home of the tiny run, and a trainer that follows a law instead of training.

    The first stratum in order of name is worth most. Returns the list of mixes that were trained.
    """
    copied()
    ran = []

    def follow(config, folder, prepared, progress):
        shares = {cell: weight for cell, weight, _ in config.data.mix.table}
        ran.append((shares, config))
        if len(ran) == follow.killed_at:
            raise KeyboardInterrupt
        best = sum(weight for cell, weight in shares.items() if cell in follow.best)
        bpb = 2.0 + math.exp(-0.5 - 0.8 * best) + 0.001 * config.train.seed
        (folder / "evals").mkdir(parents=True)
        (folder / "checkpoints").mkdir()
        line = {"kind": "finish", "step": 12, "seconds": 3.0, "time": "t", "attempt": 1}
        (folder / "events.jsonl").write_text(json.dumps(line) + "\n")
        sets = {"sources": {"domains": {"text": {"bpb": bpb}}}}
        (folder / f"evals/{config.train.num_steps}.json").write_text(json.dumps({"sets": sets}))

    follow.best, follow.killed_at = FIRST, 0
    monkeypatch.setattr(job, "trained", follow)
    return ran, follow


def _without_mix(config):
    data = dataclasses.replace(config.data, mix=MixConfig())
    return dataclasses.replace(config, data=data)


def test_the_chosen_mix_gives_more_to_what_is_worth_most_and_trains_the_recipe(small, tmp_path):
    ran, _ = small
    out = tmp_path / "mix"
    found = job.mix(TOPICAL, proxy_recipe=TOPICAL, proxies=26, groups=3, out=out)
    assert len(ran) == 26 + 2 * 3
    worth = [name for name, held in found["strata"].items() if held[0].startswith("t00")]
    gained = sum(found["chosen"][name] - found["natural"][name] for name in worth)
    assert gained > 0.05
    assert sum(found["chosen"].values()) == pytest.approx(1)
    assert found["comparison"]["mean"]["better"]
    assert found["errors"]["sources/text"]["ratio"] < 0.2
    config = resolve(TOPICAL, [f"data.mix=@{found['table']}"])
    assert config.data.mix.rule == "table"
    assert config.data.mix.table == read_weights(out / "mix.csv")
    assert config.data.mix.cooldown_share == topical().data.mix.cooldown_share
    assert str(out / "mix.csv") in config.notes["data.mix.*"]
    for name, held in found["strata"].items():
        share = sum(one for cell, one, _ in config.data.mix.table if cell in held)
        assert share == pytest.approx(found["chosen"][name], rel=1e-9)
    assert json.loads((out / "mix.json").read_text()) == found


def test_a_killed_call_goes_on_with_the_next_proxy_and_a_finished_one_trains_nothing(
    small, tmp_path
):
    ran, follow = small
    words = {"proxy_recipe": TOPICAL, "proxies": 24, "groups": 3, "seeds": 2, "out": tmp_path / "m"}
    follow.killed_at = 10
    with pytest.raises(KeyboardInterrupt):
        job.mix(TOPICAL, **words)
    follow.killed_at = 0
    found = job.mix(TOPICAL, **words)
    assert len(ran) == 1 + 24 + 2 * 2
    del ran[:]
    assert job.mix(TOPICAL, **words) == found
    assert not ran
    assert job.mix(TOPICAL, **{**words, "proxies": 25})["proxies"] == 25
    assert ran


def test_proxies_repeat_cells_as_the_run_does_and_differ_in_their_mix_alone(small, tmp_path):
    ran, _ = small
    longer = ["train.num_steps=48"]
    job.mix(TOPICAL, longer, proxy_recipe=TOPICAL, proxies=24, groups=3, out=tmp_path / "m")
    tokens = resolve(TOPICAL, longer).train.tokens
    assert {config.data.simulated_tokens for _, config in ran} == {tokens}
    assert {config.train.seed for _, config in ran[:24]} == {0}
    assert [config.data.seed for _, config in ran[24:]] == [1, 1, 2, 2, 3, 3]
    assert {config.data.mix.cooldown_share for _, config in ran} == {0.0}
    same = {fingerprint(override(_without_mix(config), SEEDS)) for _, config in ran}
    assert len(same) == 1


def test_a_proxy_of_another_corpus_is_refused(small, tmp_path):
    with pytest.raises(ValueError, match=r"another corpus.*cells"):
        job.mix(TOPICAL, proxy_recipe=TINY, out=tmp_path / "m")


def test_a_table_that_is_not_there_is_refused(capsys):
    assert main(["show", "quickstart", "--set", "data.mix=@missing.csv"]) == 2
    assert "missing.csv: there is no such file" in capsys.readouterr().err


def test_a_real_proxy_is_trained_scored_and_leaves_no_weights(copied, tmp_path):
    copied()
    from shoal.core.files import home
    from shoal.core.progress import Silent
    from shoal.data.load import TokenStore
    from shoal.data.strata import sizes, strata
    from shoal.jobs.prepare import prepare

    config = topical()
    prepared = prepare(config.data.corpus, home(), Silent())
    units = TokenStore.open(prepared.store).units
    grouped = strata(units, *job._topics(prepared), 3)
    held = sizes(grouped, units)
    run = job._runner(config, tmp_path / "runs", prepared, grouped, units, "key")
    shares = {name: number / sum(held.values()) for name, number in held.items()}
    scores = run(shares, 3)
    assert scores
    assert all(name.startswith("sources/") and 1 < bpb < 12 for name, bpb in scores.items())
    (folder,) = (tmp_path / "runs").iterdir()
    assert not (folder / "checkpoints").exists()
    stamp = (folder / "metrics.jsonl").stat().st_mtime_ns
    assert run(shares, 3) == scores
    assert (folder / "metrics.jsonl").stat().st_mtime_ns == stamp
