"""Training by gradient descent (`fit`) or by counting and expectation–maximization (`estimate`), with exact resume."""
