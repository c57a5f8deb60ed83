"""Text from the weights of a run: brought to the device once, then sampled token by token."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from shoal.data.tokenize import EOS_ID
from shoal.train.config import Config
from shoal.train.together import ALONE, Together, begin_together

# (params, prompts as token ids, number of tokens, temperature, seed) -> one column per token
type Sampler = Callable[[Any, Sequence[Sequence[int]], int, float, int], Iterator[Any]]


def sampler(config: Config, mesh: Any = None, together: Together = ALONE) -> Sampler:
    """Return the function that continues prompts, compiled once; see `model.sample.sample`."""
    import jax

    from shoal.arrays.mesh import on_device
    from shoal.model.sample import next_logits, sample

    context = config.train.sequence_tokens
    place = jax.jit(lambda params: on_device(params, mesh))
    scores = jax.jit(partial(next_logits, config=config.model, context=context))
    begun = begin_together(scores, together, "sampler")

    def following(
        params: Any, prompts: Sequence[Sequence[int]], tokens: int, temperature: float, seed: int
    ) -> Iterator[Any]:
        return sample(
            partial(begun, place(params)),
            prompts,
            context=context,
            num_tokens=tokens,
            temperature=temperature,
            seed=seed,
            eos=EOS_ID,
        )

    return following
