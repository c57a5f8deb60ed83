"""The process behind `shoal plan --compile`: `python -m shoal.jobs.lowered` on fake devices.

Reads {recipe, overrides, chips} as JSON from its input, prints what `plan.compile.measured` says
of the recipe's train step. No array is made. What a config leaves to the platform is taken as on
an accelerator where a CPU can compile it: layers in a loop, grouped products for the experts.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any

from shoal.arrays.config import degrees
from shoal.core.config import override
from shoal.jobs.resolve import resolve
from shoal.plan.compile import measured
from shoal.train.config import Config
from shoal.train.derive import peak_rates

FORMS = {"layer_loop": "scan", "experts": "ragged", "attention": "chunks"}


def with_forms(config: Config) -> Config:
    """Return the config with a form for everything that it leaves to the platform."""
    open_ = [name for name in FORMS if getattr(config.model, name) == "auto"]
    return override(config, [f"model.{name}={FORMS[name]}" for name in open_])


def lowered(recipe: str, overrides: Sequence[str], *, chips: int) -> dict[str, Any]:
    """Compile a recipe's train step for a number of devices; see `plan.compile.measured`.

    Raises:
        ValueError: no such recipe or setting, or settings that do not fit.
    """
    config = with_forms(resolve(recipe, overrides))
    import jax
    import jax.numpy as jnp

    from shoal.arrays.mesh import make_mesh, tokens_at
    from shoal.train.state import abstract_state, shardings
    from shoal.train.step import Batch, make_step

    degree, peak = degrees(config.mesh, chips), peak_rates(config)
    mesh = make_mesh(degree, jax.devices()[:chips]) if chips > 1 else None
    shape = (config.train.batch_sequences, config.train.sequence_tokens)
    place: dict[str, Any] = {} if mesh is None else {"sharding": tokens_at(mesh)}
    dtypes = {**dict.fromkeys(Batch._fields, jnp.int32), "weights": jnp.float32}
    arrays: dict[str, Any] = {
        name: jax.ShapeDtypeStruct(shape, dtype, **place) for name, dtype in dtypes.items()
    }
    batch = Batch(**arrays)
    rests = shardings(config, peak, mesh)
    gives: dict[str, Any] = {} if rests is None else {"out_shardings": (rests, None)}
    return measured(
        make_step(config, peak, mesh),
        abstract_state(config, peak, mesh),
        batch,
        donate_argnums=0,
        **gives,
    )


if __name__ == "__main__":
    print(json.dumps(lowered(**json.load(sys.stdin))))
