"""Inspection of models and training: plain values, plots, tours, and the doctor."""
