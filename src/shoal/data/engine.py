"""Daft, the engine of the stages that must scale: in this process, or on a Ray cluster.

`native` runs in this process; `ray` starts a Ray of its own on this machine; `ray://ADDRESS`
connects to a cluster, which must see the same files under the same paths. The same plan gives the
same output on each: whatever order rows come in, results are sorted, or are sets. Only ids and
hashes go through a shuffle, never text.

Only this module imports Daft, inside functions: loading the package stays quick. Telemetry of Daft
and of Ray is switched off before either is imported.
"""

import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_QUIET = {
    "DO_NOT_TRACK": "true",
    "SCARF_NO_ANALYTICS": "true",
    "DAFT_ANALYTICS_ENABLED": "0",
    "DAFT_PROGRESS_BAR": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray warns about a default that changes for machines without accelerators.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
# One process has one runner for its whole life; Daft says so too, but not what to do.
_started: list[str] = []


# From one column of a batch to one value per row; called in threads and in other processes.
BatchFunction = Callable[[pa.Array], pa.Array]


class Engine:
    """Runs plans over Parquet files, where its name says.

    Raises:
        ValueError: the name is unknown, Ray is not installed or cannot be reached, or this process
            has run another engine already.
    """

    def __init__(self, name: str = "native") -> None:
        _check_name(name)
        if _started and _started[0] != name:
            raise ValueError(
                f"engine={name!r}, but this process already runs {_started[0]!r}; start another "
                "process for another engine"
            )
        self.name = name

    def map(
        self,
        path: Path,
        function: BatchFunction,
        *,
        over: str,
        into: pa.Field,
        keep: Sequence[str],
        batch_rows: int = 256,
    ) -> pa.Table:
        """Columns `keep` of a Parquet file and a computed one, in no particular order of rows.

        Args:
            path: a Parquet file.
            function: see `BatchFunction`; pure, and importable where a cluster runs it.
            over: the column that `function` reads.
            into: name and type of its result.
            keep: columns that come along.
            batch_rows: most rows in one call.
        """
        daft = self._daft()

        wrap = daft.func.batch(
            return_dtype=daft.DataType.from_arrow_type(_wide(into.type)),
            batch_size=batch_rows,
            use_process=False,
        )
        parts: list[pa.Table] = []
        for groups in _row_groups(path, self.name):
            plan = daft.read_parquet([str(path)], row_groups=[groups])
            computed = wrap(lambda column: _apply(function, column))(plan[over]).alias(into.name)
            parts.append(plan.select(*(plan[name] for name in keep), computed).to_arrow())
        found = pa.concat_tables(parts)
        return found.set_column(len(keep), into, found[into.name].cast(into.type))

    def pairs(
        self, paths: Sequence[Path], *, lists: str, value: str, passes: int = 1
    ) -> Iterator[tuple[pa.Array, pa.Array]]:
        """Joins values whose rows have an element of their list in common.

        Args:
            paths: Parquet files.
            lists: a column of lists of unsigned 64-bit numbers.
            value: a column of unsigned 64-bit numbers.
            passes: elements are grouped in so many parts, one after the other: memory shrinks by
                this factor, and the files are read as often.

        Yields:
            Of each part a pair for every value that shares an element with a smaller one: it, and
            the smallest of that element; in any order, some of them more than once.
        """
        daft = self._daft()
        read = [str(path) for path in paths]
        for part in range(passes):
            # A group as a list would cost hundreds of bytes for each element that stands alone.
            rows = self._elements(read, lists, value, passes, part)
            groups = rows.groupby(lists).agg(
                daft.col(value).count().alias("count"), daft.col(value).min().alias("smallest")
            )
            groups = groups.where(groups["count"] > 1).select(lists, "smallest")
            rows = self._elements(read, lists, value, passes, part)
            found = rows.join(groups, on=lists).select(value, "smallest")
            found = found.where(found[value] != found["smallest"]).to_arrow()
            yield tuple(found[name].combine_chunks() for name in (value, "smallest"))

    def _elements(self, paths: list[str], lists: str, value: str, passes: int, part: int) -> Any:
        """One row for each element of this part, and no row of an empty list."""
        plan = self._daft().read_parquet(paths).select(lists, value).explode(lists)
        plan = plan.where(plan[lists].not_null())
        return plan if passes == 1 else plan.where(plan[lists] % passes == part)

    def _daft(self) -> Any:
        for name, setting in _QUIET.items():
            os.environ.setdefault(name, setting)
        daft = importlib.import_module("daft")
        if not _started:
            _start_ray(self.name) if self.name != "native" else None
            _start(daft, self.name)
            _started.append(self.name)
        return daft


def _row_groups(path: Path, name: str) -> list[list[int]]:
    """Row groups that are read in one plan.

    In one process Daft reads ahead without bound, so a plan has as many as keep all cores busy; a
    cluster gets the whole file. A file without rows is one plan of none.
    """
    count = pq.read_metadata(path).num_row_groups
    step = 2 * (os.cpu_count() or 1) if name == "native" else max(1, count)
    return [list(range(first, min(first + step, count))) for first in range(0, max(1, count), step)]


def _apply(function: BatchFunction, column: Any) -> pa.Array:
    found = function(column.to_arrow())
    return found.cast(_wide(found.type))


def _check_name(name: str) -> None:
    if name != "native" and name != "ray" and not name.startswith("ray://"):
        raise ValueError(f"engine={name!r} is unknown; use native, ray or ray://ADDRESS")
    if name != "native" and importlib.util.find_spec("ray") is None:
        raise ValueError(
            f"engine={name!r} needs Ray, which is not installed; install 'shoal[ray]', or use the "
            "engine native"
        )


def _start(daft: Any, name: str) -> None:
    if name == "native":
        daft.set_runner_native()
    else:
        daft.set_runner_ray(noop_if_initialized=True)


def _start_ray(name: str) -> None:
    ray = importlib.import_module("ray")
    if ray.is_initialized():
        return
    address = None if name == "ray" else name
    options: dict[str, Any] = {} if address else {"include_dashboard": False}
    try:
        ray.init(address=address or "local", log_to_driver=False, logging_level="error", **options)
    except (ConnectionError, RuntimeError, TimeoutError) as error:
        raise ValueError(
            f"engine={name!r}: no Ray cluster answers ({error}); start one, or use the engine "
            "native"
        ) from error


def _wide(kind: pa.DataType) -> pa.DataType:
    """The type with 64-bit offsets, as Daft has it."""
    if pa.types.is_list(kind):
        return pa.large_list(_wide(kind.value_type))
    return pa.large_string() if pa.types.is_string(kind) else kind
