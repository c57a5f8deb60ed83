"""What a chip can do, as its vendor states it; the numbers and their sources: `chips.json`."""

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

_FACTS = resources.files("shoal") / "plan" / "chips.json"


@dataclass(frozen=True, kw_only=True)
class Chip:
    """Figures of one chip; a bandwidth counts bytes per second in one direction.

    Attributes:
        key: how the command line names it.
        peak_flops: dense bfloat16 operations per second.
        memory_bytes: device memory.
        memory_bytes_per_s: between the chip and its memory.
        domain_chips: chips on one fast fabric (NVLink, ICI, Infinity Fabric).
        domain_bytes_per_s: to the other chips of its domain.
        across_bytes_per_s: to chips of other domains.
        host_bytes_per_s: between the chip and its host's memory.
        power_w: watts with its share of the server.
        price_per_hour: dollars per chip and hour, an assumption.
        sources: field -> where its number can be read.
    """

    key: str
    name: str
    peak_flops: float
    memory_bytes: float
    memory_bytes_per_s: float
    domain_chips: int
    domain_bytes_per_s: float
    across_bytes_per_s: float
    host_bytes_per_s: float
    power_w: float
    price_per_hour: float
    sources: Mapping[str, str]


@cache
def chips() -> dict[str, Chip]:
    """Return every known chip by name."""
    read: dict[str, dict[str, Any]] = json.loads(_FACTS.read_text())["chips"]
    found: dict[str, Chip] = {}
    for key, facts in read.items():
        stated = {field: fact for field, fact in facts.items() if field != "name"}
        found[key] = Chip(
            key=key,
            name=facts["name"],
            sources={field: source for field, (_, source) in stated.items()},
            **{field: number for field, (number, _) in stated.items()},
        )
    return found


def chip_named(name: str) -> Chip:
    """Return the chip of a name.

    Raises:
        ValueError: no such chip.
    """
    known = chips()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.5)
    meant = f"did you mean {near[0]}? Known: " if near else "use one of "
    raise ValueError(f"chip={name!r} is unknown; {meant}{', '.join(known)}")
