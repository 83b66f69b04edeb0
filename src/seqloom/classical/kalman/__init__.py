"""Linear dynamical systems: Kalman filter and smoother, expectation–maximisation."""
