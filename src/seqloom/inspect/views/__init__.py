"""What a model or a training did, as plain values."""
