"""The cells and scores that are shipped: tests that compare with an independent version have one for each of these."""

from seqloom.nn import cells, scores

STANDARD_CELLS = [name for name, cell in cells.CELLS.items() if cell.__module__ == cells.standard.__name__]
STANDARD_SCORES = [name for name, score in scores.SCORES.items() if score.__module__ == scores.standard.__name__]
