"""Checkpoints: the whole state, complete or not there.

    checkpoints/STEP/state/         the arrays, as orbax writes them
    checkpoints/STEP/manifest.json  every leaf (path, shape, dtype, SHA-256), every file (bytes,
                                    SHA-256), the state's digest, the record's link up to here

A checkpoint appears under its number by one rename after everything in it is on disk, and goes by
one; a killed save leaves only a hidden folder that the next call removes. Restoring checks files
and leaves against the manifest and the model: a missing leaf is an error, never a fresh start.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from shoal.core.files import TEMPORARY, canonical_json, folder_atomic, read_limited, sha256_file
from shoal.train.step import State

CHECKPOINTS, MANIFEST, STATE = "checkpoints", "manifest.json", "state"
_MANIFEST_LIMIT_BYTES = 64_000_000


def leaves_of(state: Any) -> dict[str, Any]:
    """Return every leaf of a state by its dotted path, in tree order."""
    flat, _ = jax.tree_util.tree_flatten_with_path(state)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in flat}


def census(state: Any) -> dict[str, dict[str, Any]]:
    """Return shape, dtype and SHA-256 of the bytes of every leaf."""
    found = {}
    for path, leaf in leaves_of(state).items():
        array = np.ascontiguousarray(leaf).reshape(-1)
        found[path] = {
            "shape": list(np.shape(leaf)),
            "dtype": str(array.dtype),
            "sha256": hashlib.sha256(array.view(np.uint8)).hexdigest(),
        }
    return found


def digest(counted: Mapping[str, Any]) -> str:
    """Return one digest of a census: parameters, optimizer, router bias and step."""
    return hashlib.sha256(canonical_json(dict(counted)).encode()).hexdigest()


def save(run: Path, state: State, *, link: Mapping[str, Any], facts: Mapping[str, Any]) -> Path:
    """Write the checkpoint of a state; returns when it is complete and on disk.

    Args:
        link: the record's link at this moment.
        facts: further entries of the manifest (fingerprint, tokens).
    """
    host = jax.tree.map(np.asarray, jax.device_get(state))
    path = run / CHECKPOINTS / str(int(host.step))
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_unfinished(run)
    counted = census(host)
    stored = {name: leaf for name, leaf in leaves_of(host).items() if leaf.size}
    with folder_atomic(path) as folder:
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save((folder / STATE).absolute(), stored)
            checkpointer.wait_until_finished()
        manifest = {
            "step": int(host.step),
            "digest": digest(counted),
            "leaves": counted,
            "files": _listing(folder),
            "link": dict(link),
            **facts,
        }
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))
    return path


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


def restore(run: Path, step: int, like: State) -> State:
    """Load the state of a step.

    Args:
        like: the state as ShapeDtypeStructs; its leaves must be exactly the checkpoint's.

    Raises:
        ValueError: a damaged checkpoint, or one whose leaves are not this model's.
    """
    manifest = manifest_of(run, step)
    expected = leaves_of(like)
    _compare_leaves(run, step, manifest["leaves"], expected)
    folder = (run / CHECKPOINTS / str(step)).absolute()
    for name, entry in manifest["files"].items():
        if sha256_file(folder / name) != entry["sha256"]:
            what = f"{folder / name} has other bytes than were saved"
            raise ValueError(_damaged(run, step, what))
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    targets = {
        path: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device)
        for path, leaf in expected.items()
        if leaf.size  # orbax takes no empty arrays: a kind of layer that is not there
    }
    try:
        with ocp.StandardCheckpointer() as checkpointer:
            loaded = checkpointer.restore(folder / STATE, targets)
    except Exception as error:  # orbax raises many kinds; each means that the bytes are bad
        raise ValueError(_damaged(run, step, f"{folder} cannot be read ({error})")) from error
    empty = {path: jnp.zeros(e.shape, e.dtype) for path, e in expected.items() if not e.size}
    loaded = {**loaded, **empty}
    for path, found in census(loaded).items():
        if found["sha256"] != manifest["leaves"][path]["sha256"]:
            raise ValueError(_damaged(run, step, f"leaf {path} has other bytes than were saved"))
    return jax.tree.unflatten(jax.tree.structure(like), [loaded[path] for path in expected])


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


def _listing(folder: Path) -> dict[str, dict[str, Any]]:
    return {
        file.relative_to(folder).as_posix(): {
            "bytes": file.stat().st_size,
            "sha256": sha256_file(file),
        }
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


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
