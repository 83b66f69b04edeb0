"""Guided tours, which follow one text through a trained model stage by stage and show the model's values."""
