"""Decoding from any `Steppable`: sampling, beam search, mixtures of models and forecasts."""
