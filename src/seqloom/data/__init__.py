"""Data: readers, stream batches, and the corpora."""
