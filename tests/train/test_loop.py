"""The loop: what it records and saves and when, around a step of one line."""

import os
import signal
import threading
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.core.progress import Silent
from shoal.core.record import Record, read_events, read_metrics, verify_chain, verify_link
from shoal.recipes.quickstart import quickstart
from shoal.train import checkpoint, loop
from shoal.train.step import Batch, State

NUM_STEPS = 12
CADENCES = {"checkpoint_every_steps": 4, "keep_checkpoints": 2, "checkpoint_every_s": 1e9}


def config_of(**settings):
    base = quickstart()
    sizes = {"num_steps": NUM_STEPS, "batch_sequences": 2, "sequence_tokens": 4}
    return replace(base, train=replace(base.train, **{**sizes, **CADENCES, **settings}))


def first_state():
    count, grid = jnp.zeros((), jnp.int32), jnp.zeros((1, 2))
    return State(jnp.zeros((), jnp.int32), {"w": jnp.ones(3)}, {"count": count}, grid)


LIKE = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), first_state())


def step(state, batch):
    """Mixes the batch into the weights, in an order that matters, where it is finite."""
    total = jnp.sum(batch.weights)
    finite = jnp.isfinite(total)
    w = jnp.where(finite, state.params["w"] * 0.9 + total, state.params["w"])
    metrics = {
        "loss": total,
        "applied": finite.astype(jnp.float32),
        "router/load": jnp.ones((2, 3)),
        "dropped/sender": jnp.zeros(2, jnp.int32),
        "dropped/receiver": jnp.zeros(2, jnp.int32),
    }
    count = {"count": state.optimizer["count"] + 1}
    return State(state.step + 1, {"w": w}, count, state.grid), metrics


class Data:
    """The batch of an index; the steps in `bad` (from 1) get one that is not finite."""

    def __init__(self, bad=(), then=None):
        self.asked, self.bad, self.then = [], bad, then or {}

    def __call__(self, index):
        self.asked.append(index)
        if action := self.then.get(index + 1):
            action()
        rows = jnp.zeros((2, 4), jnp.int32)
        value = np.nan if index + 1 in self.bad else index * 0.37
        return Batch(rows, rows, rows, jnp.full((2, 4), value))


def train(folder, state=None, data=None, hooks=None, **settings):
    with Record.open(folder) as record:
        return loop.train(
            config_of(**settings),
            step,
            first_state() if state is None else state,
            data or Data(),
            folder=folder,
            record=record,
            progress=Silent(),
            facts={"fingerprint": "f"},
            every=hooks or {},
        )


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def events(folder, kind):
    return [event for event in read_events(folder) if event["kind"] == kind]


def final_digest(folder):
    return checkpoint.manifest_of(folder, checkpoint.newest(folder))["digest"]


@pytest.fixture
def straight(tmp_path):
    """The digest at the end of a run that nothing disturbed."""
    train(tmp_path / "straight")
    return final_digest(tmp_path / "straight")


# --- what is recorded -----------------------------------------------------------------------------


def test_every_step_is_on_record_once_with_what_it_took(tmp_path):
    outcome = train(tmp_path, detail_every_steps=5)
    lines = read_metrics(tmp_path)
    assert [line["step"] for line in lines] == list(range(1, NUM_STEPS + 1))
    assert [line["tokens"] for line in lines] == [8 * n for n in range(1, NUM_STEPS + 1)]
    assert all(line["seconds"] > 0 and line["tokens_per_s"] > 0 for line in lines)
    assert lines[3]["loss"] == pytest.approx(3 * 0.37 * 8)
    assert [line["step"] for line in lines if "router/load" in line] == [1, 5, 10]
    assert lines[0]["router/load"] == [[1.0] * 3] * 2
    assert outcome.num_steps == NUM_STEPS
    assert outcome.seconds >= outcome.first_loss_s > 0
    assert outcome.tokens_per_s > 0
    assert int(outcome.state.step) == NUM_STEPS


@pytest.mark.parametrize("cadence", [0, -1, 1, 5, 10**9])
def test_every_cadence_takes_any_number(tmp_path, cadence):
    seen = []
    train(
        tmp_path,
        hooks={cadence: lambda state: seen.append(int(state.step))},
        log_every_steps=cadence,
        detail_every_steps=cadence,
        checkpoint_every_steps=cadence,
    )
    on = [n for n in range(1, NUM_STEPS + 1) if cadence > 0 and n % cadence == 0]
    assert [line["step"] for line in read_metrics(tmp_path)] == on
    assert seen == [n for n in on if n != NUM_STEPS]
    saved = [event["step"] for event in events(tmp_path, "checkpoint")]
    assert saved == sorted({*on, NUM_STEPS})


def test_time_alone_asks_for_checkpoints_too(tmp_path):
    train(tmp_path, checkpoint_every_steps=0, checkpoint_every_s=0.0)
    assert [e["step"] for e in events(tmp_path, "checkpoint")] == list(range(1, NUM_STEPS + 1))


def test_a_checkpoint_is_put_on_record_with_its_digest_and_fits_the_record(tmp_path):
    train(tmp_path)
    assert checkpoint.steps(tmp_path) == [8, 12]
    told = events(tmp_path, "checkpoint")
    assert [event["step"] for event in told] == [4, 8, 12]
    for event in told[1:]:
        manifest = checkpoint.manifest_of(tmp_path, event["step"])
        assert manifest["digest"] == event["digest"]
        assert manifest["fingerprint"] == "f"
        assert verify_link(tmp_path, manifest["link"]) == []
    assert verify_chain(tmp_path) == []
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "metrics.jsonl").write_text("".join(lines[:-1]))
    assert verify_link(tmp_path, manifest["link"]) != []


def test_the_state_is_given_up_step_by_step(tmp_path):
    state = first_state()
    train(tmp_path, state)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))


def test_a_run_that_is_at_its_end_does_nothing(tmp_path):
    done = train(tmp_path).state
    data = Data()
    outcome = train(tmp_path, done, data)
    assert data.asked == []
    assert (outcome.num_steps, outcome.first_loss_s, outcome.tokens_per_s) == (0, None, None)


# --- going on -------------------------------------------------------------------------------------


@pytest.mark.parametrize("stops", [[1], [5], [5, 7], [4, 8], [11]])
def test_a_run_that_was_interrupted_goes_on_to_the_same_bits(tmp_path, straight, stops):
    run, asked = tmp_path / "run", []
    for stop in stops:
        data = Data(then={stop: interrupt})
        state = checkpoint.restore(run, checkpoint.newest(run), LIKE) if asked else None
        with pytest.raises(KeyboardInterrupt, match=f"stopped at step {stop}"):
            train(run, state, data)
        asked += data.asked
        assert checkpoint.newest(run) == stop
    data = Data()
    train(run, checkpoint.restore(run, stop, LIKE), data)
    assert asked + data.asked == list(range(NUM_STEPS))
    assert final_digest(run) == straight
    assert [event["step"] for event in events(run, "stop")] == stops
    assert verify_chain(run) == []
    assert [line["attempt"] for line in read_metrics(run)] == [
        1 + sum(stop < n for stop in stops) for n in range(1, NUM_STEPS + 1)
    ]


def test_a_run_that_was_killed_repeats_from_its_checkpoint_to_the_same_bits(tmp_path, straight):
    class Killed(BaseException):
        pass

    def kill():
        raise Killed

    run = tmp_path / "run"
    with pytest.raises(Killed):
        train(run, data=Data(then={11: kill}))
    assert checkpoint.newest(run) == 8
    train(run, checkpoint.restore(run, 8, LIKE))
    assert final_digest(run) == straight
    attempts = [line["attempt"] for line in read_metrics(run)]
    assert attempts == [1] * 8 + [2] * 4


def test_an_interrupt_at_the_last_step_only_ends_it(tmp_path, straight):
    train(tmp_path / "run", data=Data(then={NUM_STEPS: interrupt}))
    assert final_digest(tmp_path / "run") == straight
    assert events(tmp_path / "run", "stop") == []


def test_a_second_interrupt_stops_at_once(tmp_path):
    def twice():
        interrupt()
        interrupt()

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, data=Data(then={6: twice}))
    assert checkpoint.newest(tmp_path) == 4
    assert read_metrics(tmp_path)[-1]["step"] == 5


def test_the_interrupt_handler_is_put_back(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, data=Data(then={3: interrupt}))
    assert signal.getsignal(signal.SIGINT) is before
    train(tmp_path / "other")
    assert signal.getsignal(signal.SIGINT) is before


def test_a_run_in_another_thread_ends_the_same(tmp_path, straight):
    failed = []

    def work():
        try:
            train(tmp_path / "run")
        except BaseException as error:  # noqa: BLE001 -- whatever it is, the test shows it
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert failed == []
    assert final_digest(tmp_path / "run") == straight


def test_a_full_disk_stops_the_run_and_loses_nothing_written(tmp_path, straight, monkeypatch):
    run, real = tmp_path / "run", checkpoint.folder_atomic

    def full(path):
        if path.name == "8":
            raise OSError(28, "No space left on device")
        return real(path)

    monkeypatch.setattr(checkpoint, "folder_atomic", full)
    with pytest.raises(OSError, match="No space left"):
        train(run)
    assert checkpoint.steps(run) == [4]
    assert verify_chain(run) == []
    monkeypatch.undo()
    train(run, checkpoint.restore(run, 4, LIKE))
    assert final_digest(run) == straight


# --- steps that are not finite --------------------------------------------------------------------


def test_a_step_that_is_not_finite_is_told_and_not_saved_until_one_is(tmp_path):
    train(tmp_path, data=Data(bad=(3, 4, 8)), log_every_steps=10, keep_checkpoints=9)
    told = events(tmp_path, "nonfinite")
    assert [(event["step"], event["in_a_row"]) for event in told] == [(3, 1), (4, 2), (8, 1)]
    assert [event["loss"] for event in told] == ["nan"] * 3
    lines = read_metrics(tmp_path)
    assert [line["step"] for line in lines] == [3, 4, 8, 10]
    assert [line["applied"] for line in lines] == [0.0, 0.0, 0.0, 1.0]
    assert checkpoint.steps(tmp_path) == [12]


def test_the_last_step_is_saved_even_if_it_was_not_applied(tmp_path):
    outcome = train(tmp_path, data=Data(bad=(NUM_STEPS,)))
    assert checkpoint.newest(tmp_path) == NUM_STEPS
    found = checkpoint.restore(tmp_path, NUM_STEPS, LIKE)
    assert np.isfinite(found.params["w"]).all()
    np.testing.assert_array_equal(found.params["w"], outcome.state.params["w"])


def test_an_interrupt_at_a_step_that_was_not_applied_loses_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, data=Data(bad=(7,), then={7: interrupt}))
    assert checkpoint.newest(tmp_path) == 7


def test_too_many_in_a_row_stop_the_run_before_its_good_states_are_gone(tmp_path):
    with pytest.raises(ValueError, match="not finite in 3 steps in a row, up to step 11") as error:
        train(tmp_path, data=Data(bad=(2, 3, 6, 9, 10, 11)), stop_after_skipped=3)
    assert str(tmp_path / "checkpoints") in str(error.value)
    assert checkpoint.steps(tmp_path) == [4, 8]
    assert verify_chain(tmp_path) == []
