"""The quickstart with units of 1, 4 and 16 sequences; nothing else differs.

.venv/bin/shoal quickstart --set name=unit-4 --set data.corpus.unit_tokens=1024 runs the same.
"""

from shoal.core.config import replace
from shoal.recipes.quickstart import quickstart
from shoal.train.config import Config


def _units_of(num_sequences: int) -> Config:
    config = replace(quickstart(), "name", f"unit-{num_sequences}")
    unit_tokens = num_sequences * config.train.sequence_tokens
    return replace(config, "data.corpus.unit_tokens", unit_tokens)


def unit_1() -> Config:
    """Return the quickstart as it is."""
    return _units_of(1)


def unit_4() -> Config:
    """Return the quickstart with units of 1,024 tokens."""
    return _units_of(4)


def unit_16() -> Config:
    """Return the quickstart with units of 4,096 tokens."""
    return _units_of(16)
