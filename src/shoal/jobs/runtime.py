"""What a job that computes needs of its process: jax set up once, facts about the machine."""

import ctypes
import os
import platform
import resource
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import shoal
from shoal.core.artifact import source_commit

_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8


def start_jax(home: Path) -> None:
    """Set jax up for this process: compiled programs are kept under HOME/xla-cache.

    Called before the job's other work: threads that exist already keep memory arenas of their own.
    """
    _keep_freed_memory()
    import jax

    jax.config.update("jax_compilation_cache_dir", str((home / "xla-cache").absolute()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")


def _keep_freed_memory() -> None:
    """Let glibc keep what XLA frees: a CPU step takes and returns its buffers every time.

    Handed back to the system and faulted in again page by page, they cost a third of a small
    step's CPU time. One arena, no separate mappings, no trimming; the price is a higher plateau.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    # -1 becomes the largest size; any positive int is below the buffers of a gigabyte model.
    for option, value in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1), (_M_ARENA_MAX, 1)):
        libc.mallopt(option, value)


def environment() -> dict[str, Any]:
    """Return what a reader needs to know of where a run ran; nothing secret, no paths."""
    import jax

    return {
        "shoal": shoal.__version__,
        "commit": source_commit(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("jax", "jaxlib", "numpy", "optax", "tokenizers")},
        "platform": platform.platform(),
        "backend": jax.default_backend(),
        "devices": [str(device) for device in jax.devices()],
        "cores": num_cores(),
        "processor": processor(),
        "xla_flags": xla_flags(),
    }


def processor() -> str:
    """Return the processor's name: its instructions decide how sums are rounded."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def xla_flags() -> str:
    """Return the compiler's settings, which change bits too, less those that name a path."""
    given = os.environ.get("XLA_FLAGS", "").split()
    return " ".join(sorted(flag for flag in given if os.sep not in flag))


def num_cores() -> int:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def peak_rss_gb() -> float:
    """Return the most memory that this process has held, in 1e9 bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    unit = 1 if sys.platform == "darwin" else 1024
    return peak * unit / 1e9
