"""Hidden Markov models: one recursion, of symbols, Gaussians and tags."""
