"""Word vectors: skip-gram, CBOW and GloVe."""
