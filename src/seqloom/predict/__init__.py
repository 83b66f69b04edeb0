"""Predictors, which apply trained models: one class per task, opened by `load`."""
