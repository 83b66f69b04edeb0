"""Plots of what the views return."""
