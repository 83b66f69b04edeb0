"""Training: by gradient (`fit`) or by counting and expectation–maximization (`estimate`), with exact resume."""
