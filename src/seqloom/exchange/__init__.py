"""Import and export of checkpoints in the format of `transformers`, without that library.

A family (`family.py`) describes one kind of model in that format. A family consists of the keys of config.json and a
table of tensors that is used in both directions (`weights.py`). `directory.py` reads and writes the files. In names and
comments, *ours* refers to seqloom and *theirs* to `transformers`.
"""
