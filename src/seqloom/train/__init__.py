"""Training: by gradient (`fit`) or by counting and expectation–maximisation (`estimate`), with exact resume."""
