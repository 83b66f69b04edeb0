"""Inspection of models and training: views as plain values, plots, guided tours, and checks of recipes."""
