"""What must hold between the parts of a config; each check is one function.

A check returns what is wrong, with the value and what to do, or None. Fields check themselves in
their own class; `check` refuses a config with every problem that it has.
"""

from collections.abc import Callable

from shoal.train.config import Config

type Check = Callable[[Config], str | None]


def units_hold_whole_sequences(config: Config) -> str | None:
    """A unit of the data order is cut into slices of one sequence each."""
    unit, sequence = config.data.corpus.unit_tokens, config.train.sequence_tokens
    if unit % sequence == 0:
        return None
    nearest = max(round(unit / sequence), 1) * sequence
    return (
        f"data.corpus.unit_tokens={unit} is not a multiple of train.sequence_tokens={sequence};"
        f" use {nearest}"
    )


def evaluation_fits_the_longest_context(config: Config) -> str | None:
    """A unit is the longest context that the recipe plans."""
    length, unit = config.eval.sequence_tokens, config.data.corpus.unit_tokens
    if 2 <= length <= unit:
        return None
    return (
        f"eval.sequence_tokens={length} is outside 2 .. data.corpus.unit_tokens={unit};"
        f" use train.sequence_tokens={config.train.sequence_tokens}"
    )


def vocabulary_holds_the_tokenizer(config: Config) -> str | None:
    """Every token id needs a row of the embedding."""
    tokens, rows = config.data.corpus.tokenizer.vocab_size, config.model.vocab_size
    if tokens <= rows:
        return None
    return (
        f"data.corpus.tokenizer.vocab_size={tokens} exceeds model.vocab_size={rows};"
        f" set model.vocab_size={tokens} or train a smaller tokenizer"
    )


def queries_keep_their_sign(config: Config) -> str | None:
    """The context rule of the query scale falls below zero at a short enough context."""
    for where, length in (
        ("train", config.train.sequence_tokens),
        ("eval", config.eval.sequence_tokens),
    ):
        scale = config.model.query_scale(length)
        if scale <= 0.0:
            return (
                f"{where}.sequence_tokens={length} gives a query scale of {scale:.3g}, which is not"
                f" positive; lower model.qk_scale_log={config.model.qk_scale_log}"
                f" or model.base_context={config.model.base_context}"
            )
    return None


def experts_expect_a_token(config: Config) -> str | None:
    """Balancing looks for the token at rank T * K / E of each expert."""
    assignments = config.train.tokens_per_step * config.model.top_k
    if assignments >= config.model.num_experts:
        return None
    return (
        f"a step of {config.train.tokens_per_step} tokens at model.top_k={config.model.top_k} makes"
        f" {assignments} assignments for model.num_experts={config.model.num_experts};"
        " raise train.batch_sequences or use fewer experts"
    )


def mixture_names_training_sources(config: Config) -> str | None:
    """Where a cell is a source, the names are known before anything is prepared."""
    if config.data.corpus.cells.by != "source":
        return None
    cells = [source.name for source in config.data.corpus.training]
    unknown = [name for name, *_ in config.data.mix.table if name not in cells]
    if not unknown:
        return None
    return f"data.mix.table names {', '.join(unknown)}; the corpus has {', '.join(cells)}"


def lanes_hold_every_cell(config: Config) -> str | None:
    """A table gives each cell a whole number of lanes, at least one."""
    if config.data.corpus.cells.by != "source":
        return None
    table = config.data.mix.table
    num_cells = sum(max(w) > 0 for _, *w in table) or len(config.data.corpus.training)
    if config.data.table_lanes >= num_cells:
        return None
    return (
        f"data.table_lanes={config.data.table_lanes} is below the {num_cells} sources of the"
        " mixture; use at least that many"
    )


def experts_divide_over_their_axis(config: Config) -> str | None:
    """Every device of the expert axis holds as many experts as the others."""
    num_experts, degree = config.model.num_experts, config.mesh.expert
    if degree == -1 or num_experts % degree == 0:
        return None
    fitting = [str(d) for d in range(2, num_experts + 1) if num_experts % d == 0]
    return (
        f"model.num_experts={num_experts} is not divisible by mesh axis 'expert'={degree};"
        f" use {', '.join(fitting[:8])}"
    )


CHECKS: tuple[Check, ...] = (
    units_hold_whole_sequences,
    evaluation_fits_the_longest_context,
    vocabulary_holds_the_tokenizer,
    queries_keep_their_sign,
    experts_expect_a_token,
    mixture_names_training_sources,
    lanes_hold_every_cell,
    experts_divide_over_their_axis,
)


def check(config: Config) -> None:
    """Refuse a config whose parts do not fit.

    Raises:
        ValueError: every problem, one a line.
    """
    problems = [problem for problem in (found(config) for found in CHECKS) if problem]
    if problems:
        raise ValueError("\n".join(problems))
