"""Views of trained models and runs as plain values."""
