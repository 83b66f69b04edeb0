"""Corpora, file readers, text readers and batches."""
