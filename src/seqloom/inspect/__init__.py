"""Seeing inside: what models and trainings did, as plain arrays and as pictures of them."""
