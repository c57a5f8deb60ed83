"""A seal reads back as it was; whatever is altered in it is caught, and named."""

import copy
import hashlib
import json
from dataclasses import replace

import pytest

from scaling.ladders import made
from shoal.scaling.forecast import forecast
from shoal.scaling.records import Target
from shoal.scaling.seal import (
    differences,
    flagged,
    ladder_sha256,
    make_seal,
    parse_seal,
    problems,
    read_seal,
)

DATE = "2026-12-01T10:00:00+00:00"
LADDER = made(noise=0.003)
FORECAST = forecast(LADDER)
TABLE = flagged("c-overlap@0", {"sources/owt": {"looked_for": 20, "half": 1, "share": 0.1}})
SEAL = make_seal(FORECAST, LADDER, date=DATE, contamination=TABLE)


def tree():
    return json.loads(json.dumps(SEAL.plain()))


def leaves(value, path=()):
    """Paths to every value that is no object; of a list its first and last."""
    if isinstance(value, dict):
        return [found for key in value for found in leaves(value[key], (*path, key))]
    if isinstance(value, list) and value:
        ends = {0, len(value) - 1}
        return [found for place in ends for found in leaves(value[place], (*path, place))]
    return [path]


def changed(value):
    if isinstance(value, bool) or value is None:
        return 1.0
    return f"{value}x" if isinstance(value, str) else [1] if isinstance(value, list) else value + 1


def altered(path):
    whole = tree()
    at = whole
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = changed(at[path[-1]])
    return whole


def resealed(whole):
    """The hash anew, as a forger would, with nothing but the standard library."""
    whole = {name: value for name, value in whole.items() if name != "sha256"}
    text = json.dumps(whole, sort_keys=True, separators=(",", ":"))
    return {**whole, "sha256": hashlib.sha256(text.encode()).hexdigest()}


def test_a_seal_reads_back_as_it_was_and_says_all(tmp_path):
    path = tmp_path / "seal.json"
    path.write_text(json.dumps(SEAL.plain(), indent=1))
    assert read_seal(path) == SEAL
    assert problems(tree()) == []
    assert SEAL.forecast == FORECAST
    assert SEAL.ladder_sha256 == ladder_sha256(LADDER)
    assert SEAL.miss["interval"] == FORECAST.headline.interval_90[-1]
    assert SEAL.contamination["flagged"] == ["sources/owt"]


def test_the_hash_is_over_everything_else_as_anyone_can_compute_it():
    assert resealed(tree()) == tree()
    assert make_seal(FORECAST, LADDER, date=DATE).sha256 != SEAL.sha256
    later = make_seal(FORECAST, LADDER, date="2026-12-02T10:00:00+00:00", contamination=TABLE)
    assert later.sha256 != SEAL.sha256


def test_the_line_to_publish_says_hash_name_metric_center_interval_and_date():
    line = SEAL.line()
    low, high = FORECAST.headline.interval_90[-1]
    center = FORECAST.headline.central[-1]
    for piece in (SEAL.sha256, "made", "sources/macro/bpb", "end", DATE):
        assert piece in line
    assert f"{center:.4f} (90 %: {low:.4f} to {high:.4f})" in line
    assert "\n" not in line


@pytest.mark.parametrize("path", leaves(tree()), ids=lambda path: ".".join(map(str, path)))
def test_any_altered_field_is_caught_and_named(path):
    whole = altered(path)
    found = problems(whole)
    assert found
    if path[0] == "version":
        assert found == ["its version is 2; this is for version 1"]
    elif path[0] == "sha256":
        assert found == ["sha256 is not that of the rest"]
    else:
        named = found[0].removesuffix(" was altered")
        where = path[1] if path[0] == "digests" else ".".join(map(str, path))
        assert where.startswith(named)
        assert len(found) == 1
    with pytest.raises(ValueError, match="seal is not as it was sealed"):
        parse_seal(whole)


def test_what_is_added_or_removed_is_named():
    whole = tree()
    del whole["forecast"]["series"]["sources/owt/bpb"]
    assert problems(whole) == ["forecast.series.sources/owt/bpb was removed"]
    whole = tree()
    whole["forecast"]["conditions"]["sequence"] = 9
    assert problems(whole) == ["forecast.conditions.sequence was added"]
    whole = tree()
    del whole["miss"]
    assert "it needs exactly" in problems(whole)[0]
    assert problems([]) == problems(None) == problems({**tree(), "more": 1})


def test_a_seal_written_anew_has_another_hash_and_may_not_contradict_itself():
    whole = tree()
    whole["forecast"]["series"]["sources/macro/bpb"]["interval_90"][-1] = [0.1, 9.0]
    whole["digests"]["forecast.series.sources/macro/bpb"] = hashlib.sha256(
        json.dumps(
            whole["forecast"]["series"]["sources/macro/bpb"],
            sort_keys=True,
            separators=(",", ":"),
        ).encode()
    ).hexdigest()
    forged = resealed(whole)
    assert forged["sha256"] != SEAL.sha256
    assert problems(forged) == ["miss is not about the forecast's end"]


def test_only_what_follows_from_its_ladder_is_sealed():
    wrong = copy.deepcopy(FORECAST)
    wrong.headline.central[7] *= 1 + 1e-5
    with pytest.raises(ValueError, match=r"not follow from its ladder: series.*central\[7\] is"):
        make_seal(wrong, LADDER, date=DATE)
    pinned = forecast(LADDER, asymptote=(0.4, 0.8), noise=0.004)
    assert make_seal(pinned, LADDER, date=DATE).forecast == pinned
    with pytest.raises(ValueError, match="not follow from its ladder"):
        make_seal(pinned, made(noise=0.004), date=DATE)


def test_a_target_without_a_config_is_not_sealed():
    end = Target(name="end", fingerprint="", width=256, tokens=9, flops=2.4e14)
    ladder = replace(LADDER, target=end)
    with pytest.raises(ValueError, match="target end of forecast made has no fingerprint"):
        make_seal(forecast(ladder), ladder, date=DATE)


def test_a_forecast_without_an_end_is_not_sealed():
    runs = tuple(
        replace(run, series={n: (*v[:10], *(None,) * 10) for n, v in run.series.items()})
        for run in LADDER.runs
    )
    short = replace(LADDER, runs=runs)
    with pytest.raises(ValueError, match="says nothing of the end of 'sources/macro/bpb'"):
        make_seal(forecast(short), short, date=DATE)


def test_another_config_is_refused_by_its_fingerprint():
    SEAL.check_target("e")
    with pytest.raises(ValueError, match="seal made is for end with fingerprint e, and this conf"):
        SEAL.check_target("f" * 64)


def test_a_domain_is_flagged_from_one_half_known_text_in_twenty_on():
    facts = {
        "sources/a": {"looked_for": 20, "half": 1},
        "sources/b": {"looked_for": 21, "half": 1},
        "sources/c": {"looked_for": 0, "half": 0},
    }
    assert flagged("t", facts)["flagged"] == ["sources/a"]
    assert set(flagged("t", facts)["domains"]) == set(facts)


def test_differences_are_told_by_place():
    one = {"a": [1.0, {"b": 2.0}], "c": "x"}
    assert differences(one, copy.deepcopy(one)) == []
    assert differences(one, {"a": [1.0, {"b": 2.5}], "c": "y"}) == [
        "a[1].b is 2.5, not 2.0",
        'c is "y", not "x"',
    ]
    assert differences(one, {"a": [1.0], "d": 1}) == [
        "a has 1 entries, not 2",
        "c is missing",
        "d is new",
    ]
    assert differences([1.0], [1.0 + 1e-7], within=1e-6) == []
    assert differences([1.0], [1.0 + 1e-5], within=1e-6) == ["[0] is 1.00001, not 1.0"]
