"""Compiled loops work where nothing can be written."""

import os
import subprocess
import sys
from pathlib import Path

CODE = """
import numba.core.caching
{block}
from shoal.data.kernel import kernel
def add(a, b):
    return a + b
print(kernel(add)(1, 2))
"""
# As in an installation that is read-only, for a user without a home.
BLOCK = "numba.core.caching.CacheImpl._locator_classes = []"


def test_machine_code_goes_where_it_is_sent_and_nowhere_without_a_place(tmp_path: Path):
    script = tmp_path / "package" / "script.py"
    script.parent.mkdir()
    cache = tmp_path / "cache"
    for block, folder in (("", cache), (BLOCK, tmp_path / "other")):
        script.write_text(CODE.format(block=block))
        said = subprocess.run(
            [sys.executable, str(script)],
            env={**os.environ, "NUMBA_CACHE_DIR": str(folder)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert said.stdout == "3\n", said.stderr
        assert [path.name for path in script.parent.iterdir()] == ["script.py"]
    assert list(cache.rglob("*.nbi"))
    assert not (tmp_path / "other").exists()
