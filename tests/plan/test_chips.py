"""The facts about chips."""

import dataclasses

import pytest

from shoal.plan.chips import Chip, chip_named, chips

EXPECTED = ["gb200", "b200", "h200", "h100", "tpu-v5p", "mi300x"]


def test_every_number_of_every_chip_has_a_source():
    assert list(chips()) == EXPECTED
    numbers = {f.name for f in dataclasses.fields(Chip)} - {"key", "name", "sources"}
    for chip in chips().values():
        assert set(chip.sources) == numbers
        assert all(getattr(chip, name) > 0 for name in numbers)
        assert chip.sources["price_per_hour"].startswith("assumption: ")


def test_gb200_peak_is_the_one_that_the_public_run_divides_by():
    assert chip_named("gb200").peak_flops == 2.5e15


@pytest.mark.parametrize("chip", list(chips().values()), ids=EXPECTED)
def test_a_chip_is_faster_inside_its_domain_than_across(chip):
    assert chip.memory_bytes_per_s > chip.domain_bytes_per_s > chip.across_bytes_per_s
    assert chip.domain_bytes_per_s > chip.host_bytes_per_s


def test_an_unknown_chip_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match="chip='gb20' is unknown; did you mean gb200"):
        chip_named("gb20")
    with pytest.raises(ValueError, match="use one of gb200, b200"):
        chip_named("abacus")
