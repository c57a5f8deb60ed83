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
        plan = daft.read_parquet([str(path)])
        computed = wrap(lambda column: _apply(function, column))(plan[over]).alias(into.name)
        found = plan.select(*(plan[name] for name in keep), computed).to_arrow()
        return found.set_column(len(keep), into, found[into.name].cast(into.type))

    def shared(
        self, paths: Sequence[Path], *, lists: str, value: str, passes: int = 1
    ) -> Iterator[tuple[pa.Array, pa.Array]]:
        """Groups of values whose rows have an element of their list in common.

        Args:
            paths: Parquet files.
            lists: a column of lists of unsigned 64-bit numbers.
            value: a column of unsigned 64-bit numbers.
            passes: elements are grouped in so many parts, one after the other: memory shrinks by
                this factor, and the files are read as often.

        Yields:
            Of each part the values of all groups of two or more, and each group's size, in any
            order of groups and inside them.
        """
        daft = self._daft()
        for part in range(passes):
            plan = daft.read_parquet([str(path) for path in paths]).select(lists, value)
            plan = plan.explode(lists)
            if passes > 1:
                plan = plan.where(plan[lists] % passes == part)
            plan = plan.where(plan[lists].not_null())
            plan = plan.groupby(lists).agg(daft.col(value).list_agg().alias(value))
            plan = plan.select(plan[value], plan[value].list_count().alias("count"))
            groups = plan.where(plan["count"] > 1).to_arrow().combine_chunks()
            values = pa.chunked_array(groups[value].chunks, groups[value].type).combine_chunks()
            yield values.flatten(), groups["count"].combine_chunks()

    def _daft(self) -> Any:
        for name, setting in _QUIET.items():
            os.environ.setdefault(name, setting)
        daft = importlib.import_module("daft")
        if not _started:
            _start_ray(self.name) if self.name != "native" else None
            _start(daft, self.name)
            _started.append(self.name)
        return daft


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
