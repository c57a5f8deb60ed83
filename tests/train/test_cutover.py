"""The verdict on a change of a run: what is paired, what is told, what stops it."""

import re

import numpy as np
import pytest

from shoal.train.cutover import Arm, Limits, verdict


def arm(losses, *, grad=1.0, sender=0, receiver=0, seconds=0.5, applied=1.0):
    steps = [
        {
            "loss": np.float32(loss),
            "grad_norm": np.float32(grad),
            "grad_norm/muonh": np.float32(grad * 0.8),
            "dropped/sender": np.array([sender, 0]),
            "dropped/receiver": np.array([receiver, receiver]),
            "delivered": np.array([100 - sender - receiver, 100 - receiver]),
            "applied": np.float32(applied),
        }
        for loss in losses
    ]
    times = [9.0, *[seconds] * (len(losses) - 1)]
    return Arm(steps=steps, seconds=times, tokens_per_step=1000, bytes_per_device=7)


OLD = arm([3.0, 2.0, 2.5, 2.2])


def test_what_both_replays_share_cancels():
    """Losses differ by a nat from step to step, and the pairs by a thousandth."""
    new = arm([3.0005, 2.0015, 2.5005, 2.2015])
    found = verdict(OLD, new, Limits(loss=0.01))
    gaps = np.array([0.0005, 0.0015, 0.0005, 0.0015])
    assert found["go"]
    assert found["loss"]["mean"] == pytest.approx(gaps.mean(), rel=1e-3)
    assert found["loss"]["spread"] == pytest.approx(gaps.std(ddof=1), rel=1e-3)
    half = 3.18 * gaps.std(ddof=1) / 2  # Student's t with three degrees of freedom
    assert found["loss"]["high_95"] - found["loss"]["mean"] == pytest.approx(half, rel=1e-3)
    assert found["loss"]["largest"] == pytest.approx(0.0015, rel=1e-2)
    assert found["loss"]["spread"] < 0.01 < np.std([3.0, 2.0, 2.5, 2.2])


def test_equal_replays_go_whatever_their_first_step_took():
    found = verdict(OLD, OLD, Limits())
    assert (found["go"], found["reasons"]) == (True, [])
    assert found["tokens_per_s"] == {"old": 2000.0, "new": 2000.0}
    assert found["grad_norm"]["muonh"]["difference"] == 0.0


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        (arm([3.1, 2.1, 2.6, 2.3]), r"the loss is \+0\.10000 nats in the mean, above 0\.001"),
        (arm([3.0, 2.0, 2.5, 2.25]), r"the loss of a step is \+0\.05000 nats, above 0\.02"),
        (arm([3.0, 2.0, 2.5, 2.2], grad=1.5), r"gradient norm of muonh is \+50\.0%, beyond 10"),
        (arm([3.0, 2.0, 2.5, 2.2], receiver=5), r"5\.000% of the assignments are dropped, 0\.000%"),
        (arm([3.0, 2.0, 2.5, 2.2], seconds=1.0), r"1,000 tokens/s, -50\.0% of 2,000"),
        (arm([3.0, 2.0, 2.5, np.nan]), "not applied, or its loss is not finite"),
        (arm([3.0, 2.0, 2.5, 2.2], applied=0.0), "not applied, or its loss is not finite"),
    ],
    ids=["mean", "one step", "gradients", "drops", "speed", "nan", "skipped"],
)
def test_each_limit_stops_the_change_and_says_why(new, reason):
    found = verdict(OLD, new, Limits())
    assert not found["go"]
    assert any(re.search(reason, text) for text in found["reasons"]), found["reasons"]


def test_a_change_for_the_better_goes():
    better = arm([2.9, 1.9, 2.4, 2.1], seconds=0.4)
    dropping = arm([3.0, 2.0, 2.5, 2.2], sender=4, receiver=3)
    found = verdict(dropping, better, Limits())
    assert found["go"], found["reasons"]
    assert found["dropped"]["sender"] == {"old": pytest.approx(4 / 200), "new": 0.0}
    assert found["dropped"]["receiver"] == {"old": pytest.approx(6 / 200), "new": 0.0}
    assert found["dropped"]["all"]["old"] == pytest.approx(10 / 200)


def test_a_gradient_that_appears_where_none_was_stops_the_change():
    dead = arm([3.0, 2.0, 2.5, 2.2], grad=0.0)
    assert verdict(dead, dead, Limits())["go"]
    assert not verdict(dead, OLD, Limits())["go"]
