"""Plots of the values that the views return."""
