"""A sealed forecast: what was said, from what, under which conditions, and what would be a miss.

`seal.json`: {"version", "name", "date", "forecast", "ladder_sha256", "contamination", "miss",
"digests", "sha256"}. `forecast` is all of `forecast.json`, `ladder_sha256` that of the ladder's
canonical JSON, `contamination` what is known of evaluation text in training text. `digests` has the
SHA-256 of every part, so that an altered one can be named; `sha256` is over the canonical JSON of
everything else, and is what is published, timestamped and put first into the run's record.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from shoal.core.files import canonical_json
from shoal.scaling.forecast import Forecast, forecast
from shoal.scaling.records import Ladder, Target, read_json

VERSION = 1
SEAL = "seal.json"
MISS_LEVEL = 0.9
# Where so many of its texts are known, a domain's loss can be off by as large a share of itself.
FLAG_SHARE = 0.05
# A refit on another kind of processor may round the ninth digit otherwise.
REFIT = 1e-6
# Parts that have a digest for each of their entries.
_OPENED = {"", "miss", "forecast"} | {
    f"forecast.{name}" for name in ("target", "settings", "conditions", "series", "health")
}


@dataclass(frozen=True, kw_only=True)
class Seal:
    """A seal that is whole.

    Attributes:
        name: the ladder's.
        date: when it was sealed, in UTC, by the clock of who sealed it.
        ladder_sha256: of the ladder's record.
        contamination: `table`, `rule`, `domains` and those of them that are `flagged`, or None.
        miss: `metric`, `at` (share of training), `level`, `interval` and the rule in words.
        sha256: over everything else.
    """

    name: str
    date: str
    forecast: Forecast
    ladder_sha256: str
    contamination: dict[str, Any] | None
    miss: dict[str, Any]
    sha256: str

    @property
    def target(self) -> Target:
        """The run that is forecast."""
        return self.forecast.target

    def plain(self) -> dict[str, Any]:
        """What `seal.json` says."""
        tree = {**asdict(self), "version": VERSION}
        del tree["sha256"]
        return {**tree, "digests": dict(_digests(tree)), "sha256": self.sha256}

    def line(self) -> str:
        """What to publish elsewhere before the run begins."""
        head = self.forecast.headline
        low, high = (f"{end:.4f}" for end in self.miss["interval"])
        return (
            f"shoal seal {self.sha256}: {self.name}, {self.forecast.metric} of {self.target.name}"
            f" will be {head.central[-1]:.4f} (90 %: {low} to {high}), {self.date}"
        )

    def check_target(self, fingerprint: str) -> None:
        """Refuse a config that is not the one that was forecast.

        Raises:
            ValueError: its fingerprint is another.
        """
        if fingerprint != self.target.fingerprint:
            raise ValueError(
                f"seal {self.name} is for {self.target.name} with fingerprint"
                f" {self.target.fingerprint[:12]}, and this config's is {fingerprint[:12]}; train"
                " the recipe that the ladder was made for, with the overrides that it was given"
            )


def make_seal(
    found: Forecast, ladder: Ladder, *, date: str, contamination: dict[str, Any] | None = None
) -> Seal:
    """Seal a forecast.

    Args:
        found: what is sealed; it has to follow from the ladder.
        ladder: its record.
        date: ISO 8601 with a time zone.
        contamination: see `Seal`.

    Raises:
        ValueError: nothing is forecast at the end, the target is no config, or the ladder and the
            settings do not give this forecast.
    """
    end = found.headline.interval_90[-1]
    if end is None:
        raise ValueError(f"forecast {found.ladder} says nothing of the end of {found.metric!r}")
    if not found.target.fingerprint:
        raise ValueError(
            f"the target {found.target.name} of forecast {found.ladder} has no fingerprint, so no"
            " run could be held to it; seal a ladder that `shoal ladder` made"
        )
    odd = differences(refit(found, ladder).plain(), found.plain(), within=REFIT)
    if odd:
        raise ValueError(
            f"forecast {found.ladder} does not follow from its ladder: {odd[0]}; run"
            f" `shoal forecast {found.ladder}` again"
        )
    tree = {
        "version": VERSION,
        "name": found.ladder,
        "date": date,
        "forecast": found.plain(),
        "ladder_sha256": ladder_sha256(ladder),
        "contamination": contamination,
        "miss": _miss(found, end),
    }
    whole = {**tree, "digests": dict(_digests(tree))}
    return parse_seal({**whole, "sha256": _sha256(whole)}, f"seal {found.ladder}")


def _miss(found: Forecast, interval: list[float]) -> dict[str, Any]:
    return {
        "metric": found.metric,
        "at": 1.0,
        "level": MISS_LEVEL,
        "interval": list(interval),
        "says": (
            f"a miss is {found.metric} outside the 90 % interval at the end of the run with this"
            " fingerprint, measured under these conditions, whatever changed during the run; what"
            " changed, and the value without domains whose text was trained on, are told beside it"
        ),
    }


def flagged(table: str, facts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What a seal keeps of a contamination table.

    Args:
        table: the artifact, NAME@HASH12.
        facts: SET/DOMAIN -> the facts of stage `overlap`: `items looked_for half share ...`.
    """
    return {
        "table": table,
        "rule": (
            f"flagged: at least {FLAG_SHARE:.0%} of the texts have half or more of their n-grams in"
            " training text"
        ),
        "domains": {name: dict(one) for name, one in sorted(facts.items())},
        "flagged": sorted(
            name
            for name, one in facts.items()
            if one["looked_for"] and one["half"] >= FLAG_SHARE * one["looked_for"]
        ),
    }


def refit(found: Forecast, ladder: Ladder) -> Forecast:
    """The forecast that a ladder gives with the settings that another one names."""
    kept = found.settings
    asymptote = kept.get("asymptote")
    return forecast(
        ladder,
        asymptote=(asymptote[0], asymptote[1]) if isinstance(asymptote, list) else asymptote,
        noise=kept.get("noise"),
        tail_bias=kept.get("tail_bias"),
    )


def ladder_sha256(ladder: Ladder) -> str:
    """The hash by which a seal names its ladder."""
    return _sha256(ladder.plain())


def parse_seal(tree: Any, place: str = "seal") -> Seal:
    """The seal of a JSON value.

    Raises:
        ValueError: it is none, or was altered; the message says what.
    """
    odd = problems(tree)
    if odd:
        raise ValueError(f"{place} is not as it was sealed: {'; '.join(odd)}")
    return Seal(
        name=tree["name"],
        date=tree["date"],
        forecast=Forecast.parse(tree["forecast"], f"{place}: forecast"),
        ladder_sha256=tree["ladder_sha256"],
        contamination=tree["contamination"],
        miss=tree["miss"],
        sha256=tree["sha256"],
    )


def read_seal(path: Path) -> Seal:
    """The seal of a file; errors as `parse_seal`."""
    return parse_seal(read_json(path), str(path))


def problems(tree: Any) -> list[str]:
    """What of a seal's JSON does not fit the rest of it; none where it is whole."""
    names = {"version", "name", "date", "forecast", "ladder_sha256", "contamination", "miss"}
    needed = names | {"digests", "sha256"}
    if not isinstance(tree, dict) or set(tree) != needed:
        return [f"it needs exactly {', '.join(sorted(needed))}"]
    if tree["version"] != VERSION:
        return [f"its version is {tree['version']!r}; this is for version {VERSION}"]
    said = tree["digests"] if isinstance(tree["digests"], dict) else {}
    seen = dict(_digests({name: tree[name] for name in names}))
    odd = [f"{path} was altered" for path in seen if path in said and said[path] != seen[path]]
    odd += [f"{path} was added" for path in seen if path not in said]
    odd += [f"{path} was removed" for path in said if path not in seen]
    if odd:
        return odd
    if tree["sha256"] != _sha256({name: tree[name] for name in needed - {"sha256"}}):
        return ["sha256 is not that of the rest"]
    return _contradictions(tree)


def _contradictions(tree: Mapping[str, Any]) -> list[str]:
    """What a seal that was written anew as a whole may still get wrong."""
    try:
        found = Forecast.parse(tree["forecast"])
        end, miss = found.headline.interval_90[-1], tree["miss"]
        date = datetime.fromisoformat(tree["date"])
        checks = {
            "name is not the forecast's ladder": tree["name"] == found.ladder,
            "miss is not about the forecast's end": (miss["metric"], miss["interval"])
            == (found.metric, end),
            "date has no time zone": date.tzinfo is not None,
        }
    except (ValueError, TypeError, KeyError, IndexError) as error:
        return [f"it cannot be read ({error})"]
    return [what for what, holds in checks.items() if not holds]


def differences(one: Any, other: Any, *, within: float = 0.0, path: str = "") -> list[str]:
    """Where two JSON values differ, as `PATH is B, not A`.

    Args:
        one: the value that is expected.
        other: the value that is found.
        within: numbers may be apart by this share.
        path: of the two in what they are part of.
    """
    place = path or "it"
    if isinstance(one, dict) and isinstance(other, dict):
        return [
            found
            for key in sorted({*one, *other})
            for found in (
                differences(one[key], other[key], within=within, path=_join(path, key))
                if key in one and key in other
                else [f"{_join(path, key)} is {'missing' if key in one else 'new'}"]
            )
        ]
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) != len(other):
            return [f"{place} has {len(other)} entries, not {len(one)}"]
        return [
            found
            for number, pair in enumerate(zip(one, other, strict=True))
            for found in differences(*pair, within=within, path=f"{path}[{number}]")
        ]
    if isinstance(one, int | float) and isinstance(other, int | float):
        same = math.isclose(one, other, rel_tol=within, abs_tol=within)
    else:
        same = one == other
    return [] if same else [f"{place} is {_short(other)}, not {_short(one)}"]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _digests(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    for key in sorted(tree):
        here = _join(path, key)
        if here in _OPENED and isinstance(tree[key], Mapping):
            yield from _digests(tree[key], here)
        else:
            yield here, _sha256(tree[key])


def _sha256(value: Any) -> str:
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
