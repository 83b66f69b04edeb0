"""The shipped cells and scores, each of which has an independent implementation in the tests."""

from seqloom.nn import cells, scores

STANDARD_CELLS = [name for name, cell in cells.CELLS.items() if cell.__module__ == cells.standard.__name__]
STANDARD_SCORES = [name for name, score in scores.SCORES.items() if score.__module__ == scores.standard.__name__]
