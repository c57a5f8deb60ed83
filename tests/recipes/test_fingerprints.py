"""Golden fingerprints: a recipe never changes what it is without this file's golden changing.

`python tests/recipes/test_fingerprints.py` writes the golden anew; look at its diff.
"""

import json
from pathlib import Path

from shoal.core.config import fingerprint
from shoal.jobs.resolve import recipes

GOLDEN = Path(__file__).with_name("fingerprints.json")
PARTS = ("model", "optimizer", "data", "train", "eval")


def current() -> dict[str, dict[str, str]]:
    found = {}
    for name, recipe in sorted(recipes().items()):
        config = recipe()
        parts = {part: fingerprint(getattr(config, part))[:16] for part in PARTS}
        found[name] = {"whole": fingerprint(config)[:16], **parts}
    return found


def test_every_recipe_is_what_it_was():
    assert current() == json.loads(GOLDEN.read_text())


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(current(), indent=1) + "\n")
