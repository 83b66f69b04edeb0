"""The parts models are made of: cells, and what loops, stacks and fuses them."""
