"""Guided tours: the way of one text through a trained model, with the real numbers."""
