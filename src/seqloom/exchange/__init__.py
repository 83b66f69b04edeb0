"""Real checkpoints in and out: directories of Hugging Face's `transformers`, without that library.

A family (`family.py`) says how a kind of model is written there: what its config.json means, and
which tensor is which, in one table that serves both directions (`weights.py`). `directory.py` reads
and writes the files.
"""
