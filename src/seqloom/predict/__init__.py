"""Predictors, which apply trained models. Each task has one class; `load` opens a trained model."""
