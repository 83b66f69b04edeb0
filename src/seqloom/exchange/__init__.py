"""Import and export of checkpoints in the format of `transformers`, without that library.

A family (`family.py`) describes a kind of model in that format: the keys of its config.json, and one table of tensors
for both directions (`weights.py`). `directory.py` reads and writes the files. In names and comments, *ours* refers to
seqloom and *theirs* to `transformers`.
"""
