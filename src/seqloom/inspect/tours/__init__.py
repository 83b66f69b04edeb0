"""Guided tours: one text through a trained model, stage by stage, with the values of the model."""
