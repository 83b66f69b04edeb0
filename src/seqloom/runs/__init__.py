"""A run on disk: what a training leaves behind, and where every command gets its trained model from."""
