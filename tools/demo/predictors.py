"""Predictors of the next step's queries: each gives a draft token to run as a second row, or none.

The draft row's query at each layer predicts the next step's query there; the row itself is always dropped.
Without a draft the step's own query is the prediction.
"""

from typing import Callable

import numpy as np

# (all tokens up to the current one, position of the current one) -> draft of the next, or None
Predictor = Callable[[list[int], int], int | None]


def previous(tokens: list[int], position: int) -> int | None:
    """No draft: the current query predicts the next, at no cost and for any model."""
    return None


def oracle(tokens: list[int], position: int) -> int | None:
    """The true next token, known only because the run is teacher-forced: the upper bound."""
    return tokens[position + 1]


def ngram(tokens: list[int], position: int, longest: int = 3) -> int | None:
    """Prompt look-up: what followed the latest earlier occurrence of the last 3, 2 or 1 tokens."""
    seen = np.asarray(tokens[: position + 1])
    for length in range(min(longest, position), 0, -1):
        suffix = seen[-length:]
        windows = np.lib.stride_tricks.sliding_window_view(seen[:-1], length)
        matches = np.flatnonzero((windows == suffix).all(axis=1))
        if matches.size:
            return int(seen[matches[-1] + length])
    return None


PREDICTORS: dict[str, Predictor] = {"ngram": ngram, "previous": previous, "oracle": oracle}
