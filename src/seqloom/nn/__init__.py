"""Layers of models: recurrent cells and stacks, attention, Transformer blocks, positions, output layers, pooling."""
