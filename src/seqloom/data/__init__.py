"""Corpora, readers of files and texts, and batches."""
