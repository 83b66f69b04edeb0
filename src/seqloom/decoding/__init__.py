"""Decoding from any `Steppable`: sampling, beam search and mixtures of models; and forecasts."""
