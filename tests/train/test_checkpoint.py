"""Checkpoints: whole or not there, and refused by name when they are not what was saved."""

import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from journey.saving import some_state
from shoal.core.files import sha256_file
from shoal.recipes.quickstart import quickstart
from shoal.train import checkpoint
from shoal.train.checkpoint import manifest_of, newest, prune, steps
from shoal.train.derive import peak_rates
from shoal.train.digest import census, digest, leaves_of
from shoal.train.state import abstract_state, initial_state

LINK = {"link": "of the record"}


def shapes_of(state):
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)


LIKE = shapes_of(some_state())


def save(run, *numbers):
    for step in numbers:
        checkpoint.save(run, some_state(step), link=LINK, facts={"fingerprint": "f"})


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    save(folder, 2, 4)
    return folder


def assert_bit_equal(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def payload(run):
    """The largest file of a checkpoint's arrays."""
    files = (run / "checkpoints/4/state").rglob("*")
    return max((path for path in files if path.is_file()), key=lambda path: path.stat().st_size)


# --- whole ----------------------------------------------------------------------------------------


def test_what_is_restored_is_what_was_saved_to_the_bit(run):
    assert_bit_equal(checkpoint.restore(run, 4, LIKE), some_state(4))
    assert_bit_equal(checkpoint.restore(run, 2, LIKE), some_state(2))


def test_values_that_compare_badly_are_kept_to_the_bit(tmp_path):
    odd = np.array([np.nan, -0.0, np.inf, -np.inf, 1e-45], np.float32)
    odd.view(np.uint32)[0] |= 0x123  # a NaN with a payload
    state = some_state()._replace(params={"head": jnp.asarray(odd)})
    checkpoint.save(tmp_path, state, link=LINK, facts={})
    assert_bit_equal(checkpoint.restore(tmp_path, 4, shapes_of(state)), state)


def config_of(**changes):
    base = quickstart()
    small = replace(
        base.model, vocab_size=32, embed_dim=16, num_heads=2, head_dim=8, kv_heads_local=2,
        num_experts=3, top_k=1, expert_dim=8, latent_dim=8, shared_dim=8, gate_rank=2,
        rotary_dim=4,
    )  # fmt: skip
    return replace(base, model=replace(small, **changes))


@pytest.mark.parametrize(
    "changes",
    [{}, {"num_layers": 1}, {"num_shared": 0}],
    ids=["every leaf", "no local layers", "no shared experts"],
)
def test_the_state_of_a_run_is_counted_and_restored_leaf_by_leaf(tmp_path, changes):
    config = config_of(**changes)
    peak = peak_rates(config)
    state = initial_state(config, peak)
    rng = np.random.default_rng(0)
    state = jax.tree.map(lambda a: jnp.asarray(rng.integers(-9, 9, a.shape), a.dtype), state)
    state = state._replace(step=jnp.asarray(7, jnp.int32))
    checkpoint.save(tmp_path, state, link=LINK, facts={})
    like = abstract_state(config, peak)
    assert manifest_of(tmp_path, 7)["leaves"].keys() == leaves_of(like).keys()
    assert len(leaves_of(like)) == len(jax.tree.leaves(state)) > 80
    assert_bit_equal(checkpoint.restore(tmp_path, 7, like), state)


def test_the_census_names_every_leaf_by_its_place_and_counts_each_byte(run):
    counted = census(some_state())
    assert list(counted) == [
        "step", "params.head", "params.none", "params.router_bias",
        "optimizer.buffer", "optimizer.count", "grid",
    ]  # fmt: skip
    assert counted["params.head"]["shape"] == [3, 5]
    assert counted["step"] == {**counted["optimizer.count"], "shape": []}
    for path in counted:
        changed = leaves_of(some_state())
        if changed[path].size:
            changed[path] = changed[path] + jnp.ones((), changed[path].dtype)
            again = census(changed)
            assert {p for p in counted if again[p] != counted[p]} == {path}
            assert digest(again) != digest(counted)


def test_a_digest_depends_on_the_type_and_shape_as_well_as_the_bytes():
    zeros = {"a": jnp.zeros((2, 3), jnp.float32)}
    others = ({"a": jnp.zeros((3, 2), jnp.float32)}, {"a": jnp.zeros((2, 3), jnp.int32)})
    assert len({digest(census(tree)) for tree in (zeros, *others)}) == 3


def test_the_manifest_holds_the_digest_the_link_and_the_facts(run):
    manifest = manifest_of(run, 4)
    assert manifest["digest"] == digest(census(some_state(4)))
    assert manifest["link"] == LINK
    assert manifest["fingerprint"] == "f"
    on_disk = {
        str(path.relative_to(run / "checkpoints/4")): {
            "bytes": path.stat().st_size,
            "sha256": sha256_file(path),
        }
        for path in (run / "checkpoints/4").rglob("*")
        if path.is_file() and path.name != "manifest.json"
    }
    assert manifest["files"] == on_disk
    assert {path.split("/")[0] for path in on_disk} == {"state"}


# --- refused --------------------------------------------------------------------------------------


def edit(run, change, step=4):
    path = run / "checkpoints" / str(step) / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def remove_leaf(run):
    edit(run, lambda manifest: manifest["leaves"].pop("params.router_bias"))


def remove_leaf_and_resign(run):
    remove_leaf(run)
    edit(run, lambda manifest: manifest.update(digest=digest(manifest["leaves"])))


def rename_to_another_step(run):
    shutil.rmtree(run / "checkpoints/4")
    (run / "checkpoints/2").rename(run / "checkpoints/4")
    save(run, 2)


def write_manifest(text):
    return lambda run: (run / "checkpoints/4/manifest.json").write_text(text)


DAMAGE = {
    "a file is gone": (lambda run: payload(run).unlink(), r"is missing"),
    "a file is cut": (lambda run: payload(run).write_bytes(b"short"), r"has 5 bytes, not \d+"),
    "no manifest": (lambda run: (run / "checkpoints/4/manifest.json").unlink(), "manifest.json"),
    "an empty manifest": (write_manifest(""), "is not a manifest"),
    "half a manifest": (write_manifest('{"step": 4, "fi'), "is not a manifest"),
    "a list": (write_manifest("[]"), "is not a manifest"),
    "no files": (lambda run: edit(run, lambda m: m.pop("files")), "is not a manifest"),
    "no leaves": (lambda run: edit(run, lambda m: m.pop("leaves")), "is not a manifest"),
    "files are no table": (lambda run: edit(run, lambda m: m.update(files=3)), "not a manifest"),
    "a leaf less": (remove_leaf, "lists other leaves than were saved"),
    "another step's": (rename_to_another_step, "is of step 2"),
    "no arrays": (lambda run: shutil.rmtree(run / "checkpoints/4/state"), "is missing"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_refused_with_what_is_wrong_and_what_to_do(run, damage):
    hurt, says = DAMAGE[damage]
    hurt(run)
    with pytest.raises(ValueError, match=says) as refused:
        checkpoint.restore(run, 4, LIKE)
    said = str(refused.value)
    assert said.startswith("checkpoint 4 is damaged: ")
    assert said.endswith(f"delete {run / 'checkpoints/4'} to go on from step 2")
    assert_bit_equal(checkpoint.restore(run, 2, LIKE), some_state(2))


def test_the_only_checkpoint_damaged_leaves_only_a_new_beginning(tmp_path):
    save(tmp_path, 4)
    payload(tmp_path).unlink()
    with pytest.raises(ValueError, match=f"or delete {tmp_path} to begin anew"):
        checkpoint.restore(tmp_path, 4, LIKE)


def test_a_byte_that_flips_anywhere_is_refused_with_its_file(run):
    """Before the reader of arrays sees it: what that makes of bad bytes is anybody's guess."""
    files = [path for path in (run / "checkpoints/4/state").rglob("*") if path.is_file()]
    assert len(files) > 3
    for path in files:
        whole = path.read_bytes()
        for at in {0, len(whole) // 2, len(whole) - 1}:
            hurt = bytearray(whole)
            hurt[at] ^= 1
            path.write_bytes(hurt)
            with pytest.raises(ValueError, match=f"{path} has other bytes than were saved"):
                checkpoint.restore(run, 4, LIKE)
        path.write_bytes(whole)
    assert_bit_equal(checkpoint.restore(run, 4, LIKE), some_state(4))


def test_bytes_that_decode_to_other_numbers_are_noticed(run):
    """A sound archive of another state, sizes and all, under this one's manifest."""
    other = run.parent / "other"
    changed = some_state(4)
    changed = changed._replace(params={**changed.params, "head": changed.params["head"] + 1})
    checkpoint.save(other, changed, link=LINK, facts={})
    shutil.rmtree(run / "checkpoints/4/state")
    shutil.copytree(other / "checkpoints/4/state", run / "checkpoints/4/state")
    files = manifest_of(other, 4)["files"]
    edit(run, lambda manifest: manifest.update(files=files))
    with pytest.raises(ValueError, match=r"leaf params\.head has other bytes than were saved"):
        checkpoint.restore(run, 4, LIKE)


def test_a_leaf_that_was_never_saved_is_refused_by_name(run):
    """The lost routing tables of another trainer came back as zeros."""
    remove_leaf_and_resign(run)
    with pytest.raises(ValueError, match=r"lacks params\.router_bias: .* of another model"):
        checkpoint.restore(run, 4, LIKE)


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"more": jnp.zeros(2)}, r"lacks params\.more: it is of another model"),
        ({"head": jnp.zeros((3, 6))}, r"params\.head is float32\[3, 5\], this .* float32\[3, 6\]"),
        ({"head": jnp.zeros((3, 5), jnp.bfloat16)}, r"this model has bfloat16\[3, 5\]"),
    ],
)  # fmt: skip
def test_a_checkpoint_of_another_model_is_refused_with_the_leaf(run, params, says):
    state = some_state()
    like = shapes_of(state._replace(params={**state.params, **params}))
    with pytest.raises(ValueError, match=says) as refused:
        checkpoint.restore(run, 4, like)
    assert "resume with the config that wrote it" in str(refused.value)


def test_a_leaf_too_many_is_refused_by_name(run):
    state = some_state()
    like = shapes_of(state._replace(optimizer={"count": state.optimizer["count"]}))
    with pytest.raises(ValueError, match=r"has optimizer\.buffer besides"):
        checkpoint.restore(run, 4, like)


def test_a_step_that_was_never_saved_is_not_called_damaged(run):
    with pytest.raises(ValueError, match=r"has no checkpoint at step 3; there are: 2, 4$"):
        checkpoint.restore(run, 3, LIKE)


def test_a_run_without_checkpoints_says_so(tmp_path):
    assert steps(tmp_path) == []
    with pytest.raises(ValueError, match="has no complete checkpoint yet; train it first"):
        newest(tmp_path)


def test_a_step_is_never_saved_over(run):
    with pytest.raises(ValueError, match="exists already"):
        save(run, 4)
    assert_bit_equal(checkpoint.restore(run, 4, LIKE), some_state(4))


# --- atomic ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["_listing", "folder_atomic"])
def test_a_save_that_fails_leaves_no_checkpoint_and_nothing_behind(run, monkeypatch, moment):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, moment, fail)
    with pytest.raises(OSError, match="No space left"):
        save(run, 6)
    assert steps(run) == [2, 4]
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["2", "4"]


def test_what_a_killed_save_or_prune_left_goes_with_the_next_save_of_any_step(run):
    left = run / "checkpoints/.6.tmp-123-abc"
    (left / "state").mkdir(parents=True)
    (run / "checkpoints/.2.tmp-gone").mkdir()
    assert steps(run) == [2, 4]
    save(run, 8)
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["2", "4", "8"]
    checkpoint.remove_unfinished(run.parent / "nothing")


def test_prune_keeps_the_newest_and_never_all(run):
    save(run, 10, 6)
    assert prune(run, 2) == [2, 4]
    assert steps(run) == [6, 10]
    assert prune(run, 2) == []
    assert prune(run, 0) == [6]
    assert steps(run) == [10]
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["10"]


SAVES = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from journey.saving import forever
forever(Path(sys.argv[2]))
"""


@pytest.mark.slow
def test_a_kill_at_any_moment_of_saving_leaves_a_newest_that_loads(tmp_path, repository):
    """A fresh process saves and prunes in a loop; it is killed again and again."""
    rng = np.random.default_rng(0)
    run, reached = tmp_path / "run", 0
    command = [sys.executable, "-c", SAVES, str(repository / "tests"), str(run)]
    for longest_s in (0.1, 0.3, 0.3, 1.0, 1.0, 2.0, 2.0, 2.0):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == f"from {reached}"
            time.sleep(float(rng.uniform(0.0, longest_s)))
            process.send_signal(signal.SIGKILL)
        found = steps(run)
        assert len(found) <= 3
        if found:
            assert found[-1] >= reached
            reached = found[-1]
            assert_bit_equal(checkpoint.restore(run, reached, LIKE), some_state(reached))
    assert reached >= 4
