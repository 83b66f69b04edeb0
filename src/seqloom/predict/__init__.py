"""Predictors: trained models in use, one class per task, opened by `load`."""
