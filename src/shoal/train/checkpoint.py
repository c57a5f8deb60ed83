"""Checkpoints: the whole state, complete or not there.

    checkpoints/STEP/state/         the arrays, as orbax writes them
    checkpoints/STEP/manifest.json  every leaf (path, shape, dtype, sum), every file (bytes,
                                    SHA-256), the state's digest, the record's link up to here

The layout knows nothing of mesh, transport or memory mode: what was saved on one is restored on any
other.

A checkpoint appears under its number by one rename after everything in it is on disk, and goes by
one; a killed save leaves only a hidden folder that the next call removes. Restoring checks files
and leaves against the manifest and the model: a missing leaf is an error, never a fresh start.
"""

import json
import shutil
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from shoal.core.files import TEMPORARY, folder_atomic, read_limited, sha256_file
from shoal.train.digest import census, digest, leaves_of
from shoal.train.step import State
from shoal.train.together import ALONE, PATIENCE_S, Together, agree

CHECKPOINTS, MANIFEST, STATE = "checkpoints", "manifest.json", "state"
_MANIFEST_LIMIT_BYTES = 64_000_000


def save(
    run: Path,
    state: State,
    *,
    link: Mapping[str, Any],
    facts: Mapping[str, Any],
    together: Together = ALONE,
) -> Path:
    """Write the checkpoint of a state; returns when it is complete and on disk.

    Every process writes what its devices hold, into one folder that all of them see.

    Args:
        link: the record's link at this moment; the leader's counts.
        facts: further entries of the manifest (fingerprint, tokens).
    """
    step = int(state.step)
    path = run / CHECKPOINTS / str(step)
    counted = census(state, together)
    stored = {name: leaf for name, leaf in leaves_of(state).items() if leaf.size}
    with _shared_folder(path, together) as folder:
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save((folder / STATE).absolute(), stored)
            checkpointer.wait_until_finished()
        together.barrier("saved", PATIENCE_S)
        files = _listing(folder, together)
        if together.leader:
            manifest = {
                "step": step,
                "digest": digest(counted),
                "leaves": counted,
                "files": files,
                "link": dict(link),
                **facts,
            }
            (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))
    together.barrier("complete", PATIENCE_S)
    return path


@contextmanager
def _shared_folder(path: Path, together: Together) -> Generator[Path]:
    """Yield one empty folder to all processes; the leader's context makes it `path`."""
    with ExitStack() as stack:

        def make() -> str:
            path.parent.mkdir(parents=True, exist_ok=True)
            remove_unfinished(path.parents[1])
            return str(stack.enter_context(folder_atomic(path)))

        yield Path(together.from_leader(make))


def steps(run: Path) -> list[int]:
    """List the steps whose checkpoints are complete, ascending."""
    folder = run / CHECKPOINTS
    if not folder.is_dir():
        return []
    return sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit() and p.is_dir())


def newest(run: Path) -> int:
    """Return the newest complete step.

    Raises:
        ValueError: there is none.
    """
    found = steps(run)
    if not found:
        raise ValueError(f"run {run.name} has no complete checkpoint yet; train it first")
    return found[-1]


def manifest_of(run: Path, step: int) -> dict[str, Any]:
    """Read a checkpoint's manifest and check that its files are there.

    Raises:
        ValueError: there is no such checkpoint, or the manifest or a file is missing or not whole.
    """
    folder = run / CHECKPOINTS / str(step)
    if not folder.is_dir():
        there = ", ".join(map(str, steps(run))) or "none"
        raise ValueError(f"run {run.name} has no checkpoint at step {step}; there are: {there}")
    try:
        text = read_limited(folder / MANIFEST, _MANIFEST_LIMIT_BYTES)
    except ValueError as error:
        raise ValueError(_damaged(run, step, str(error))) from error
    try:
        manifest = json.loads(text)
        sizes = {name: int(entry["bytes"]) for name, entry in manifest["files"].items()}
        number = int(manifest["step"])
        sound = manifest["digest"] == digest(manifest["leaves"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"{folder / MANIFEST} is not a manifest ({error!r})"
        raise ValueError(_damaged(run, step, what)) from error
    if number != step or not sound:
        what = f"is of step {number}" if number != step else "lists other leaves than were saved"
        raise ValueError(_damaged(run, step, f"{folder / MANIFEST} {what}"))
    for name, size in sizes.items():
        path = folder / name
        if not path.is_file():
            raise ValueError(_damaged(run, step, f"{path} is missing"))
        if path.stat().st_size != size:
            found = path.stat().st_size
            raise ValueError(_damaged(run, step, f"{path} has {found} bytes, not {size}"))
    return manifest


def restore(run: Path, step: int, like: State, together: Together = ALONE) -> State:
    """Load the state of a step onto the devices, and into the memory, that `like` names.

    Args:
        like: the state as ShapeDtypeStructs; its leaves must be exactly the checkpoint's. Without
            shardings everything goes to the first device.

    Raises:
        ValueError: a damaged checkpoint, or one whose leaves are not this model's.
    """
    manifest = manifest_of(run, step)
    expected = leaves_of(like)
    _compare_leaves(run, step, manifest["leaves"], expected)
    folder = (run / CHECKPOINTS / str(step)).absolute()
    agree(together, _other_bytes(run, step, manifest, together))
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    targets = {
        path: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding or here)
        for path, leaf in expected.items()
        if leaf.size  # orbax takes no empty arrays: a kind of layer that is not there
    }
    try:
        with ocp.StandardCheckpointer() as checkpointer:
            loaded = checkpointer.restore(folder / STATE, targets)
    except Exception as error:  # orbax raises many kinds; each means that the bytes are bad
        raise ValueError(_damaged(run, step, f"{folder} cannot be read ({error})")) from error
    empty = {path: _nothing(leaf) for path, leaf in expected.items() if not leaf.size}
    loaded = {**loaded, **empty}
    for path, found in census({path: loaded[path] for path in expected}, together).items():
        if found["sum"] != manifest["leaves"][path]["sum"]:
            raise ValueError(_damaged(run, step, f"leaf {path} has other bytes than were saved"))
    return jax.tree.unflatten(jax.tree.structure(like), [loaded[path] for path in expected])


def _nothing(leaf: Any) -> jax.Array:
    return jax.device_put(np.zeros(leaf.shape, leaf.dtype), leaf.sharding)


def _other_bytes(
    run: Path, step: int, manifest: Mapping[str, Any], together: Together
) -> str | None:
    """Read the files, shared out over the processes, and say what is not as it was saved."""
    folder = run / CHECKPOINTS / str(step)
    for name in together.share(sorted(manifest["files"])):
        if sha256_file(folder / name) != manifest["files"][name]["sha256"]:
            return _damaged(run, step, f"{folder / name} has other bytes than were saved")
    return None


def prune(run: Path, keep: int) -> list[int]:
    """Delete all but the newest `keep` checkpoints; returns the steps that are gone."""
    gone = steps(run)[: -max(keep, 1)]
    for step in gone:
        folder = run / CHECKPOINTS / str(step)
        hidden = folder.with_name(f".{step}{TEMPORARY}gone")
        folder.rename(hidden)  # a kill while deleting leaves no half of a checkpoint
        shutil.rmtree(hidden)
    return gone


def remove_unfinished(run: Path) -> None:
    """Delete what killed saves and prunes left; the caller holds the lock on the run."""
    for path in list((run / CHECKPOINTS).glob(f".*{TEMPORARY}*")):
        shutil.rmtree(path)


def _listing(folder: Path, together: Together) -> dict[str, dict[str, Any]]:
    """Read every file; the processes share them out."""
    files = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]
    own = {
        name: {"bytes": (folder / name).stat().st_size, "sha256": sha256_file(folder / name)}
        for name in together.share(sorted(files))
    }
    found = {
        name: entry for part in together.gather(own, PATIENCE_S) for name, entry in part.items()
    }
    return dict(sorted(found.items()))


def _compare_leaves(
    run: Path, step: int, saved: Mapping[str, Any], expected: Mapping[str, Any]
) -> None:
    missing = sorted(expected.keys() - saved.keys())
    extra = sorted(saved.keys() - expected.keys())
    if missing or extra:
        what = f"lacks {missing[0]}" if missing else f"has {extra[0]} besides"
        raise ValueError(
            f"checkpoint {step} of {run} {what}: it is of another model or optimizer;"
            " resume with the config that wrote it"
        )
    for path, leaf in expected.items():
        shape, dtype = tuple(saved[path]["shape"]), saved[path]["dtype"]
        if shape != tuple(leaf.shape) or dtype != str(leaf.dtype):
            raise ValueError(
                f"checkpoint {step} of {run}: {path} is {dtype}{list(shape)}, this model has"
                f" {leaf.dtype}{list(leaf.shape)}; resume with the config that wrote it"
            )


def _damaged(run: Path, step: int, what: str) -> str:
    others = [s for s in steps(run) if s < step]
    folder = run / CHECKPOINTS / str(step)
    remedy = (
        f"restore the file, or delete {folder} to go on from step {others[-1]}"
        if others
        else f"restore the file, or delete {run} to begin anew"
    )
    return f"checkpoint {step} is damaged: {what}; {remedy}"
