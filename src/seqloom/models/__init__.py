"""One readable file per model, its Config beside it."""
