"""The shipped cells and scores. The tests contain an independent implementation of each."""

from seqloom.nn import cells, scores

STANDARD_CELLS = [name for name, cell in cells.CELLS.items() if cell.__module__ == cells.standard.__name__]
STANDARD_SCORES = [name for name, score in scores.SCORES.items() if score.__module__ == scores.standard.__name__]
