"""Scores by hand, means without flagged domains, and what a run's events say of its premises."""

from dataclasses import replace

import pytest

from scaling.ladders import made
from shoal.scaling.forecast import forecast
from shoal.scaling.records import FRACTIONS, HEADLINE
from shoal.scaling.settle import (
    conditions_broken,
    last_common,
    outcome,
    premises,
    sealed_in,
    without,
)

LADDER = made(noise=0.003)
FORECAST = forecast(LADDER)
NONE = (None,) * 20


def seen_at(shift, upto=20):
    """A run that is off by `shift` at every fraction, as far as it has come."""
    return {
        name: tuple(
            said + shift if place < upto else None for place, said in enumerate(one.central)
        )
        for name, one in FORECAST.series.items()
    }


def test_a_score_is_what_a_hand_computes():
    found = outcome(FORECAST, seen_at(-0.02))
    said = FORECAST.headline
    head = found["headline"]
    assert found["fraction"] == 1.0
    assert head["seen"] == pytest.approx(said.central[-1] - 0.02)
    assert head["error"] == pytest.approx(-0.02)
    assert head["percent"] == pytest.approx(-2 / said.central[-1])
    compute = FORECAST.target.flops * head["compute_equivalent"]
    reached = said.E[-1] + said.A[-1] * compute ** -said.alpha[-1]
    assert reached == pytest.approx(head["seen"], rel=1e-6)
    assert head["compute_equivalent"] > 1
    assert found["series"].keys() == FORECAST.series.keys()
    assert found["unscored"] == []
    assert [one["error"] for one in found["trajectory"]] == pytest.approx([-0.02] * 20)


def test_inside_and_outside_are_those_of_the_sealed_intervals():
    said = FORECAST.headline
    low, high = said.interval_90[-1]
    inner_low, inner_high = said.interval_50[-1]
    for value, inside_50, inside_90 in (
        (low, False, True),
        (low - 1e-6, False, False),
        (inner_low, True, True),
        (inner_high + 1e-6, False, True),
        (high + 1e-6, False, False),
    ):
        seen = {HEADLINE: (*NONE[1:], value)}
        found = outcome(FORECAST, seen)
        head = found["headline"]
        assert (head["inside_50"], head["inside_90"]) == (inside_50, inside_90)
        assert found["miss"] is not inside_90
        assert found["unscored"] == ["sources/owt/bpb"]


def test_an_unfinished_run_is_scored_at_the_last_fraction_that_both_have():
    found = outcome(FORECAST, seen_at(0.01, upto=13))
    assert found["fraction"] == FRACTIONS[12]
    assert found["headline"]["central"] == FORECAST.headline.central[12]
    assert found["trajectory"][12]["error"] == pytest.approx(0.01)
    assert found["trajectory"][13:] == [None] * 7
    assert last_common(FORECAST, seen_at(0.0, upto=1)) == 0
    with pytest.raises(ValueError, match="no value of 'sources/macro/bpb' at any fraction"):
        outcome(FORECAST, {"sources/owt/bpb": (1.0,) * 20})


def spread(ladder, shares=(0.8, 1.0, 1.2), measure="bpb"):
    """The ladder with three domains, of which the headline is the mean."""
    names = ("a", "b", "c")
    runs = tuple(
        replace(
            run,
            series={
                HEADLINE: run.series[HEADLINE],
                **{
                    f"sources/{name}/{measure}": tuple(share * v for v in run.series[HEADLINE])
                    for name, share in zip(names, shares, strict=True)
                },
            },
        )
        for run in ladder.runs
    )
    return replace(ladder, runs=runs)


@pytest.mark.parametrize("asymptote", [None, 0.6])
def test_without_a_domain_both_sides_are_means_over_the_others(asymptote):
    ladder = spread(LADDER)
    found = forecast(ladder, asymptote=asymptote)
    end = found.headline.central[-1]
    seen = {
        HEADLINE: (*NONE[1:], end - 0.1),
        "sources/a/bpb": (*NONE[1:], 0.8 * end),
        "sources/b/bpb": (*NONE[1:], end + 0.01),
        "sources/c/bpb": (*NONE[1:], 1.2 * end - 0.31),
    }
    clean = without(found, ladder, seen, ["sources/c"])
    assert clean.keys() == {HEADLINE}
    # The domains are the headline times 0.8 and 1.0, so the law of their mean is its law times 0.9.
    assert clean[HEADLINE]["central"] == pytest.approx(0.9 * end, rel=1e-6)
    assert clean[HEADLINE]["seen"] == pytest.approx((0.8 * end + end + 0.01) / 2)
    assert clean[HEADLINE]["error"] == pytest.approx(0.005, abs=1e-6)
    assert clean[HEADLINE]["inside_90"]
    assert not outcome(found, seen)["headline"]["inside_90"]


def test_without_all_or_none_of_its_domains_a_set_has_no_clean_mean():
    ladder = spread(LADDER)
    found = forecast(ladder)
    seen = {name: tuple(one.central) for name, one in found.series.items()}
    assert without(found, ladder, seen, []) == {}
    assert without(found, ladder, seen, ["domains/a"]) == {}
    assert without(found, ladder, seen, ["sources/a", "sources/b", "sources/c"]) == {}


def test_a_macro_that_is_no_mean_is_not_taken_apart():
    ladder = spread(LADDER, shares=(0.8, 1.0, 1.21))
    found = forecast(ladder)
    seen = {name: tuple(one.central) for name, one in found.series.items()}
    with pytest.raises(ValueError, match=r"macro/bpb is .* at 5%, and the mean of its 3 domains"):
        without(found, ladder, seen, ["sources/c"])


# --- the seal in the record -----------------------------------------------------------------------


def event(kind, **fields):
    return {"kind": kind, "time": "t", "attempt": 1, "link": {}, **fields}


def test_the_seal_of_a_run_is_its_first_event():
    seal, start = event("seal", sha256="a"), event("start")
    assert sealed_in([start]) is None
    assert sealed_in([]) is None
    assert sealed_in([seal, start]) is seal
    assert sealed_in([event("torn"), seal, start]) is seal
    with pytest.raises(ValueError, match="after 'start'; only a seal that is the first event"):
        sealed_in([start, seal])
    with pytest.raises(ValueError, match="2 times"):
        sealed_in([seal, seal, start])


# --- premises -------------------------------------------------------------------------------------


def difference(path, before, after, kind="numerics"):
    return {"path": path, "before": before, "after": after, "kind": kind}


def test_every_broken_premise_is_told_with_its_step_and_reason():
    events = [
        event("seal", sha256="a"),
        event("start", fingerprint="f"),
        event("evaluate", step=3, macro={}),
        event("checkpoint", step=4),
        event(
            "change",
            why="faster",
            differences=[
                difference("moe.transport", "pooled", "ragged"),
                difference("train.log_every_steps", 1, 2, "placement"),
                difference("mesh.expert", 1, 2, "placement"),
            ],
        ),
        event("resume", step=4, cores=4),
        event("nonfinite", step=6, loss=1.0, in_a_row=1),
        event("nonfinite", step=7, loss=1.0, in_a_row=2),
        event("resume", step=4, cores=4),
        event(
            "change",
            why="swap",
            differences=[
                difference("data.mix.rule", "natural", "table", "identity"),
                difference("train.sequence_tokens", 128, 512, "identity"),
            ],
        ),
        event("resume", step=8),
        event("mixture", step=9, name="second"),
        event("finish", step=12),
    ]
    found = premises(events)
    assert [(one["what"], one["step"]) for one in found] == [
        ("transport", 4),
        ("mesh", 4),
        ("environment", 4),
        ("mixture swap", 8),
        ("context change", 8),
        ("mixture swap", 9),
        ("steps not applied", 6),
    ]
    assert found[0]["says"] == "moe.transport was 'pooled', is 'ragged' (faster)"
    assert found[2]["says"] == "cores is 4 now"
    assert found[5]["says"] == "name second"
    assert found[6]["says"] == "2 with a loss or gradient that was not finite: 6, 7"


def test_a_run_to_which_nothing_happened_broke_none():
    quiet = ("seal", "start", "evaluate", "checkpoint", "stop", "cutover", "finish", "torn")
    events = [event(kind, step=3) for kind in quiet]
    moved = [difference("train.keep_checkpoints", 1, 2, "placement")]
    events.insert(4, event("change", why=None, differences=moved))
    assert premises([*events, event("resume", step=3)]) == []


def test_conditions_are_compared_as_far_as_the_run_shows_them():
    said = {
        "sequence_tokens": 128,
        "corpus": "one@abc",
        "sets": {"sources/owt": {"bytes": 10, "documents": 2, "sha256": "x"}},
    }
    same = {"bytes": 10, "documents": 2, "loss": 1.0}
    good = conditions_broken(
        said, sequence_tokens=128, corpus="other@abc", texts={"sources/owt": same}
    )
    assert good == []
    found = conditions_broken(
        said,
        sequence_tokens=64,
        corpus="one@abd",
        texts={"sources/owt": {**same, "bytes": 11}},
    )
    assert [one["says"] for one in found] == [
        "sequence_tokens was to be 128, is 64",
        "corpus was to be abc, is abd",
        "sources/owt bytes was to be 10, is 11",
    ]
    assert conditions_broken({}, sequence_tokens=64, corpus=None, texts={}) == []
