"""What a job needs of its process."""

import json
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from shoal.jobs.runtime import environment, num_cores, peak_rss_gb, start_jax


def test_compiled_programs_are_kept_in_home(tmp_path):
    start_jax(tmp_path)
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "xla-cache")
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 0.0


def test_types_and_ranks_are_never_mixed_in_silence(tmp_path):
    start_jax(tmp_path)
    with pytest.raises(ValueError, match="strict"):
        jnp.ones(2, jnp.float32) + jnp.ones(2, jnp.int32)
    with pytest.raises(ValueError, match="rank_promotion"):
        jnp.ones((2, 2)) + jnp.ones(2)


def test_the_environment_is_plain_and_tells_no_place_or_person():
    found = json.loads(json.dumps(environment()))
    assert found["backend"] == "cpu"
    assert found["jax"] == jax.__version__
    assert len(found["devices"]) == jax.device_count()
    text = json.dumps(found)
    for secret in (str(Path.cwd()), str(Path.home()), os.uname().nodename):
        assert secret not in text


def test_cores_and_memory_are_those_of_this_process():
    assert 1 <= num_cores() <= (os.cpu_count() or 1)
    before = peak_rss_gb()
    held = bytearray(os.urandom(1_000_000) * 200)
    after = peak_rss_gb()
    assert 0.05 < before <= after < 100
    assert after >= len(held) / 1e9
