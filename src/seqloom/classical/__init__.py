"""Models estimated by counting or in closed form instead of by gradient descent."""
