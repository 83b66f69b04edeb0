"""Metrics, comparable between models."""
