"""The shortened horizon and its line."""

import datetime as dt

import pytest

from shoal.optim.config import OptimizerConfig
from shoal.optim.law import schedule_fraction
from shoal.plan.horizon import as_moment, shortened

OPTIMIZER = OptimizerConfig()
START = dt.datetime(2026, 9, 20, tzinfo=dt.UTC)


def _shortened(**changed):
    given = {
        "num_steps": 390_251,
        "at_step": 150_000,
        "start": START,
        "deadline": START + dt.timedelta(days=45),
        "step_s": 16.0,
        "lost": 0.25,
        "goodput": 1.0,
    }
    return shortened(OPTIMIZER, **{**given, **changed})


def test_lost_chips_slow_the_steps_and_the_date_decides_their_number():
    found = _shortened()
    assert found.step_s == pytest.approx(16 / 0.75)
    assert found.steps_left == int(45 * 86_400 // found.step_s)
    assert found.steps == 150_000 + found.steps_left
    assert _shortened(goodput=0.5).steps_left == found.steps_left // 2


def test_the_line_starts_where_the_schedule_is_and_lands_on_its_end():
    found = _shortened()
    assert found.fraction_from == schedule_fraction(150_000, OPTIMIZER, 390_251)
    walked = found.fraction_from + found.slope_per_step * (found.steps - found.line_from)
    assert walked == pytest.approx(OPTIMIZER.final_fraction)
    assert found.slope_per_step < found.planned_slope_per_step < 0


def test_with_time_for_everything_nothing_changes():
    found = _shortened(lost=0.0, deadline=START + dt.timedelta(days=400))
    assert found.steps == 390_251
    assert found.share_given_up == 0
    assert found.slope_per_step == found.planned_slope_per_step
    planned = [schedule_fraction(s, OPTIMIZER, 390_251) for s in (200_000, 200_001)]
    assert planned[1] - planned[0] == pytest.approx(found.slope_per_step, rel=1e-6)


def test_a_loss_during_warmup_starts_the_line_at_the_peak():
    found = _shortened(at_step=1000)
    assert found.line_from == 3902
    assert found.fraction_from == 1.0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"lost": 1.0}, "lost=1.0 must be a share"),
        ({"lost": -0.1}, "lost=-0.1 must be a share"),
        ({"at_step": 390_251}, "at_step=390251 must be from 0"),
        ({"deadline": START}, "is not after the start"),
        ({"deadline": START + dt.timedelta(seconds=5)}, "only 0 steps fit"),
    ],
)
def test_what_leaves_nothing_to_train_is_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        _shortened(**changed)


def test_dates_are_read_as_utc():
    assert as_moment("2026-11-05", "deadline").isoformat() == "2026-11-05T00:00:00+00:00"
    assert as_moment("2026-11-05T10:00+02:00", "deadline").utcoffset().total_seconds() == 7200
    with pytest.raises(ValueError, match="deadline='soon' is no date; write it as"):
        as_moment("soon", "deadline")
