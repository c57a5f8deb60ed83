"""What follows from a config alone: rates, tokens, parameters, FLOPs. No arrays, no jax."""

from shoal.model import count
from shoal.optim import law
from shoal.train.config import Config


def peak_rates(config: Config) -> law.Rates:
    """Return the optimizer's numbers for a run of this size."""
    return law.rates(
        config.optimizer,
        num_steps=config.train.num_steps,
        tokens_per_step=config.train.tokens_per_step,
        embed_dim=config.model.embed_dim,
    )


def derive(config: Config) -> dict[str, int | float]:
    """Return the numbers that a config implies, under the names that the record uses.

    `flops` are of the whole run with the head; the `_published` figures repeat the public
    miscount of global layers, so that they compare with what is printed.
    """
    train, model = config.train, config.model
    rates = peak_rates(config)
    flops = {
        # A float: JSON readers elsewhere hold no whole number of this size.
        f"flops{suffix}": float(train.tokens)
        * count.flops_per_token(model, train.sequence_tokens, head=head, published=published)
        for suffix, head, published in (
            ("", True, False),
            ("_without_head", False, False),
            ("_published", True, True),
            ("_published_without_head", False, True),
        )
    }
    return {
        "steps": train.num_steps,
        "warmup_steps": law.num_warmup_steps(config.optimizer, train.num_steps),
        "tokens_per_step": train.tokens_per_step,
        "tokens": train.tokens,
        "muon_lr": rates.muon_lr,
        "adam_lr": rates.adam_lr,
        "beta2": rates.beta2,
        "eps": rates.eps,
        "active": count.num_active(model),
        "published_total": count.num_published_total(model),
        "flops_per_token": count.flops_per_token(model, train.sequence_tokens),
        **flops,
    }
