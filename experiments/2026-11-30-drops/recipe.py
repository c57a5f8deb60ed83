"""Runs for what drops do: the quickstart's model at eight rows a step, with and without drops."""

from shoal.core.config import replace
from shoal.recipes.quickstart import quickstart
from shoal.train.config import Config


def base() -> Config:
    """Return the quickstart at 2,048 tokens a step; units of 1,024 allow longer sequences."""
    config = quickstart()
    for path, value in (
        ("name", "drops-base"),
        ("train.batch_sequences", 8),
        ("train.num_steps", 450),
        ("train.checkpoint_every_steps", 100),
        ("train.keep_checkpoints", 10),
        ("data.corpus.unit_tokens", 1024),
    ):
        config = replace(config, path, value)
    return config


def _run(name: str, *, num_shared: int, capacity: float | None) -> Config:
    config = replace(replace(base(), "name", name), "train.num_steps", 300)
    config = replace(config, "model.num_shared", num_shared)
    if capacity is None:
        return config
    for path, value in (
        ("moe.transport", "pooled"),
        ("moe.capacity_sender", 100.0),
        ("moe.capacity_receiver", capacity),
        ("moe.waves", 1),
    ):
        config = replace(config, path, value)
    return config


def shared_whole() -> Config:
    """Return the run without drops, with two shared experts."""
    return _run("drops-shared-whole", num_shared=2, capacity=None)


def shared_forced() -> Config:
    """Return the run with room for 60 % of the assignments, with two shared experts."""
    return _run("drops-shared-forced", num_shared=2, capacity=0.6)


def alone_whole() -> Config:
    """Return the run without drops and without shared experts."""
    return _run("drops-alone-whole", num_shared=0, capacity=None)


def alone_forced() -> Config:
    """Return the run with room for 60 % of the assignments, without shared experts."""
    return _run("drops-alone-forced", num_shared=0, capacity=0.6)
