"""Sampling text: a sliding window over the newest tokens, always filled to the right.

No layer knows absolute positions (rotary is relative, global layers have none), so a window that
moves on by one token is the same function at every step, and the last column is all that is read.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from shoal.model.config import ModelConfig
from shoal.model.lm import LM, forward, logits


def next_logits(
    p: LM,
    tokens: Int[Array, "B S"],
    segments: Int[Array, "B S"],
    config: ModelConfig,
    context: int,
) -> Float[Array, "B V"]:
    """Return the logits of the token after the last column; padding is segment 0, text 1."""
    hidden, _ = forward(p, tokens, segments, config, context=context)
    return logits(p, hidden[:, -1])


def sample(
    following: Callable[[Any, Any], Any],
    prompts: Sequence[Sequence[int]],
    *,
    context: int,
    num_tokens: int,
    temperature: float,
    seed: int,
    eos: int,
) -> Iterator[Int[np.ndarray, " B"]]:
    """Yield one new token per prompt and step; prompts longer than the window lose their start.

    Args:
        following: tokens and segments, each of int32[B, S], to the logits of the next, [B, V].
        context: the training context: the window, and what sets the query scale.
        temperature: 0 takes the likeliest token.
        seed: the draw of step i depends on (seed, i) alone.
    """
    if temperature < 0:
        raise ValueError(f"temperature={temperature} is negative; use 0 for the likeliest token")
    tokens = np.full((len(prompts), context), eos, np.int32)
    segments = np.zeros((len(prompts), context), np.int32)
    for row, prompt in enumerate(prompts):
        text = [eos, *prompt][-context:]
        tokens[row, context - len(text) :] = text
        segments[row, context - len(text) :] = 1
    key = jax.random.key(seed)
    for index in range(num_tokens):
        scores = following(jnp.asarray(tokens), jnp.asarray(segments))
        if temperature == 0:
            drawn = jnp.argmax(scores, axis=-1)
        else:
            drawn = jax.random.categorical(jax.random.fold_in(key, index), scores / temperature)
        new = np.asarray(drawn, np.int32)
        tokens = np.concatenate([tokens[:, 1:], new[:, None]], axis=1)
        segments = np.concatenate([segments[:, 1:], np.ones_like(new)[:, None]], axis=1)
        yield new
