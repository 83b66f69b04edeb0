"""What every other room stands on: protocols, state trees, errors, configuration, seeds, safe files."""
