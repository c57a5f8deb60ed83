"""`shoal count`: parameters and FLOPs per token of a recipe, from its config alone."""

from collections.abc import Sequence

from shoal.jobs.resolve import resolve


def count(recipe: str, overrides: Sequence[str] = ()) -> dict[str, int]:
    """Return `tensors published_total active flops_per_token flops_per_token_published`.

    Raises:
        ValueError: no such recipe or setting, or settings that do not fit.
    """
    config = resolve(recipe, overrides)
    from shoal.model import count as counting

    model, context = config.model, config.train.sequence_tokens
    return {
        "tensors": counting.num_tensors(model),
        "published_total": counting.num_published_total(model),
        "active": counting.num_active(model),
        "flops_per_token": counting.flops_per_token(model, context),
        "flops_per_token_published": counting.flops_per_token(model, context, published=True),
    }


_MEANING = {
    "tensors": "every number in the state",
    "published_total": "matrices with embedding and head, as published",
    "active": "matrices that one token meets, as published",
    "flops_per_token": "forward and backward, head included",
    "flops_per_token_published": "the same with num_layers // 4 global layers, as published",
}


def render(result: dict[str, int]) -> str:
    """Return the result of `count` for a terminal."""
    return "\n".join(f"{key:26} {value:>22,}  {_MEANING[key]}" for key, value in result.items())
