"""Language of a text, from its beginning: an ISO 639 code and how sure that is.

The model is py3langid's (langid.py, naive Bayes over byte n-grams). Scores are summed in float64 in
a fixed order and rounded, so that they do not depend on a machine's linear algebra. Code and tables
get a code too; what it says of them means little.
"""

import functools
from typing import Any

MAX_CHARACTERS = 1_000
MIN_LETTERS = 20
UNDETERMINED = "und"
DECIMALS = 2


def language(text: str) -> tuple[str, float]:
    """(code, share of the probability) of the first characters; `und` where there is too little."""
    start = text[:MAX_CHARACTERS]
    if sum(map(str.isalpha, start)) < MIN_LETTERS:
        return UNDETERMINED, 0.0
    code, score = _identifier().classify(start)
    return str(code), round(float(score), DECIMALS)


@functools.cache
def _identifier() -> Any:
    import numpy as np
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    class Ordered(LanguageIdentifier):
        """Sums a document's features one after the other; a matrix product does not."""

        __slots__ = ()

        def _sparse_score(self, visits: dict[int, int], table: Any) -> Any:
            rows = np.fromiter(visits.keys(), np.intp, len(visits))
            counts = np.fromiter(visits.values(), np.float64, len(visits))
            weighted = np.log1p(counts)[:, None] * table[rows].astype(np.float64)
            return weighted.sum(axis=0) + self.nb_pc.astype(np.float64)

    return Ordered.from_model_file(MODEL_FILE, norm_probs=True)
