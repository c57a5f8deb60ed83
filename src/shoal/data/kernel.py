"""Compiled loops: `numba.njit` without the interpreter lock, kept on disk where possible."""

from collections.abc import Callable
from typing import Any, Literal

import numba


def kernel(function: Callable[..., Any], inline: Literal["never", "always"] = "never") -> Any:
    """The compiled function, so that threads run it side by side.

    Machine code is kept beside the module, or in the user's cache folder where an installation
    cannot be written, or at `NUMBA_CACHE_DIR`; with none of them it is compiled in every process.
    """
    try:
        return numba.njit(cache=True, nogil=True, inline=inline)(function)
    except RuntimeError as error:
        if "no locator" not in str(error):
            raise
        return numba.njit(nogil=True, inline=inline)(function)
