"""Metrics that compare models of different kinds."""
