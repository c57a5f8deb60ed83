"""Cross-entropy and the logit z-loss, in one shot or in blocks of the vocabulary.

    loss = mean(cross-entropy) + z_loss * mean(logsumexp(logits)^2)

Above a stated size of the logits the blocked form keeps one block at a time, forward and backward.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from shoal.arrays.ops import along_last, at_least_float32


class TokenLoss(NamedTuple):
    """Per token: cross-entropy in nats, and the log of the partition sum."""

    nats: Float[Array, "*batch"]
    log_z: Float[Array, "*batch"]


def token_loss(
    hidden: Float[Array, "*batch D"],
    head: Float[Array, "D V"],
    targets: Int[Array, "*batch"],
    *,
    block_vocab: int,
    block_above_bytes: int,
) -> TokenLoss:
    """Return every token's loss, blocked when float32 logits would exceed the threshold."""
    bytes_needed = 4 * math.prod(hidden.shape[:-1]) * head.shape[1]
    if bytes_needed <= block_above_bytes:
        return one_shot(hidden, head, targets)
    return blocked(hidden, head, targets, block_vocab=block_vocab)


def one_shot(
    hidden: Float[Array, "*batch D"], head: Float[Array, "D V"], targets: Int[Array, "*batch"]
) -> TokenLoss:
    """All logits at once."""
    wide = at_least_float32(hidden.dtype)
    scores = jnp.matmul(hidden, head.astype(hidden.dtype), preferred_element_type=wide)
    log_z = jax.nn.logsumexp(scores, axis=-1)
    picked = jnp.take_along_axis(scores, targets[..., None], axis=-1)[..., 0]
    return TokenLoss(nats=log_z - picked, log_z=log_z)


def blocked(
    hidden: Float[Array, "*batch D"],
    head: Float[Array, "D V"],
    targets: Int[Array, "*batch"],
    *,
    block_vocab: int,
) -> TokenLoss:
    """Running logsumexp over blocks of the vocabulary; each block is computed again backward."""
    vocab = head.shape[1]
    wide = at_least_float32(hidden.dtype)
    num_blocks = -(-vocab // block_vocab)
    padded = jnp.pad(head, ((0, 0), (0, num_blocks * block_vocab - vocab)))

    @jax.checkpoint
    def add_block(
        carried: tuple[Array, Array, Array], start: Int[Array, ""]
    ) -> tuple[tuple[Array, Array, Array], None]:
        top, total, picked = carried
        columns = jax.lax.dynamic_slice_in_dim(padded, start, block_vocab, axis=1)
        scores = jnp.matmul(hidden, columns.astype(hidden.dtype), preferred_element_type=wide)
        real = start + jnp.arange(block_vocab) < vocab
        scores = jnp.where(along_last(real, scores), scores, -jnp.inf)
        new_top = jnp.maximum(top, jnp.max(jax.lax.stop_gradient(scores), axis=-1))
        shifted = jnp.sum(jnp.exp(scores - new_top[..., None]), axis=-1)
        total = total * jnp.exp(top - new_top) + shifted
        local = targets - start
        mine = (local >= 0) & (local < block_vocab)
        index = jnp.clip(local, 0, block_vocab - 1)[..., None]
        own = jnp.take_along_axis(scores, index, axis=-1)[..., 0]
        return (new_top, total, picked + jnp.where(mine, own, jnp.zeros_like(own))), None

    none = jnp.zeros(targets.shape, wide)
    first = (jnp.full(targets.shape, -jnp.inf, wide), none, none)
    starts = jnp.arange(num_blocks) * block_vocab
    (top, total, picked), _ = jax.lax.scan(add_block, first, starts)
    log_z = top + jnp.log(total)
    return TokenLoss(nats=log_z - picked, log_z=log_z)
