"""How good a model is, in numbers that mean the same whichever model they are about."""
