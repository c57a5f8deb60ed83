"""Job `seal`: fix a forecast by one hash, before the run that it is for begins.

`seal.json` is written beside `forecast.json`, once. Called again it checks everything that there
is: the seal, the two files beside it, the timestamp and the signature.
"""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shoal.core.files import folder_lock, write_atomic
from shoal.jobs import stamps
from shoal.jobs.forecast import FORECAST, LADDER, find_ladder, write_forecast
from shoal.jobs.sealed import contamination_of, find_forecast, runs_of
from shoal.scaling.forecast import forecast, read_forecast
from shoal.scaling.public import NAME as PUBLIC
from shoal.scaling.records import read_ladder
from shoal.scaling.seal import (
    REFIT,
    SEAL,
    Seal,
    differences,
    ladder_sha256,
    make_seal,
    read_seal,
    refit,
)


def seal(
    name: str,
    *,
    contamination: str | None = None,
    timestamp: str | None = None,
    authority: Path | None = None,
    sign: Path | None = None,
    signers: Path | None = None,
) -> dict[str, Any]:
    """Seal a forecast, or check one that is sealed.

    Args:
        name: a forecast under SHOAL_HOME/forecasts, or its folder. One that is not made yet is made
            with the settings that are its ladder's defaults.
        contamination: a table of `shoal contamination` (its name or path); by default the one of
            the ladder's corpus, if there is one.
        timestamp: URL of an RFC 3161 authority that is to sign the hash.
        authority: certificates that a timestamp is checked against (PEM).
        sign: an SSH key that is to sign the seal.
        signers: whose signatures are trusted, as ssh-keygen's allowed signers.

    Returns:
        `name seal sha256 line date reused miss contamination timestamp signature notes`.

    Raises:
        ValueError: there is no such ladder; another forecast is sealed there; the seal, the files
            beside it, its timestamp or its signature are not what they were.
    """
    folder = _folder(name)
    path = folder / SEAL
    with folder_lock(folder):
        reused = path.exists()
        if not reused:
            _make(folder, contamination)
        made = read_seal(path)
        odd = beside(folder, made) if reused else []
        if odd:
            raise ValueError(
                f"{path} seals another forecast: {odd[0]}; a seal is made once: put that file back,"
                f" or copy {LADDER} to a folder of another name to forecast anew"
            )
        if timestamp is not None:
            stamps.timestamp(folder, made.sha256, timestamp)
        if sign is not None:
            stamps.sign(path, sign)
    stamped = authority is not None or (folder / stamps.TIMESTAMP).is_file()
    signed = signers is not None or (folder / stamps.SIGNATURE).is_file()
    return {
        "name": made.name,
        "seal": str(path),
        "sha256": made.sha256,
        "line": made.line(),
        "date": made.date,
        "reused": reused,
        "miss": made.miss["says"],
        "contamination": made.contamination,
        "timestamp": stamps.check_timestamp(folder, made.sha256, authority) if stamped else None,
        "signature": stamps.check_signature(path, signers) if signed else None,
        "notes": _notes(made, reused=reused),
    }


def _folder(name: str) -> Path:
    if name == PUBLIC:
        raise ValueError(f"the run of {PUBLIC} is over: a seal now would show nothing")
    try:
        return find_forecast(name)
    except ValueError:
        return find_ladder(name).parent


def _make(folder: Path, table: str | None) -> None:
    if not (folder / LADDER).is_file():
        raise ValueError(f"{folder / LADDER} is missing: a seal names the ladder it was made from")
    ladder = read_ladder(folder / LADDER)
    if not (folder / FORECAST).is_file():
        write_forecast(folder, forecast(ladder))
    found = read_forecast(folder / FORECAST)
    date = datetime.now(UTC).isoformat(timespec="seconds")
    made = make_seal(found, ladder, date=date, contamination=contamination_of(found, table))
    write_atomic(folder / SEAL, json.dumps(made.plain(), indent=1) + "\n")


def beside(folder: Path, made: Seal) -> list[str]:
    """What of the ladder and the forecast beside a seal is not what was sealed.

    A file that is not there is passed over: the seal holds the whole forecast.
    """
    odd: list[str] = []
    if (folder / FORECAST).is_file():
        found = read_forecast(folder / FORECAST)
        apart = differences(made.forecast.plain(), found.plain())
        odd += [f"{FORECAST}: {one}" for one in apart]
    if (folder / LADDER).is_file():
        ladder = read_ladder(folder / LADDER)
        if ladder_sha256(ladder) != made.ladder_sha256:
            odd.append(f"{LADDER} is not the one that was sealed")
        else:
            again = refit(made.forecast, ladder).plain()
            apart = differences(again, made.forecast.plain(), within=REFIT)
            odd += [f"a fit to {LADDER} gives other numbers: {one}" for one in apart]
    return odd


def _notes(made: Seal, *, reused: bool) -> list[str]:
    begun = [] if reused else [folder.name for folder in runs_of(made.target.fingerprint)]
    notes = [
        f"run {name} with this config has begun without the seal; it can only be settled as"
        " retroactive: train under another name"
        for name in begun
    ]
    if made.contamination is None:
        notes.append(
            "no contamination table is part of it; `shoal contamination CORPUS SET/DOMAIN ...`"
            " makes one, before the seal"
        )
    return notes


def render(result: dict[str, Any]) -> str:
    """The seal, what it holds, and the line to publish."""
    lines = [f"{'sealed before, and whole' if result['reused'] else 'sealed'}: {result['seal']}"]
    lines.append(f"  {result['miss']}")
    table = result["contamination"]
    if table:
        named = ", ".join(table["flagged"]) or "none"
        lines.append(f"  contamination ({table['table']}), flagged: {named}")
    stamp, signature = result["timestamp"], result["signature"]
    if stamp:
        checked = "" if stamp["trusted"] else " (authority not checked: give --authority)"
        lines.append(f"  timestamp: {stamp['time']}{checked}")
    if signature:
        who = signature["who"] or "anybody (give --signers to check whose)"
        lines.append(f"  signature: {signature['key']} of {who}")
    lines += [f"  note: {note}" for note in result["notes"]]
    target = f"shoal train RECIPE --forecast {result['name']}"
    lines += ["", f"publish this line elsewhere, then start the target with `{target}`:", ""]
    return "\n".join([*lines, result["line"]])
