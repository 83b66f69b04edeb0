"""The run directory, which training creates and every command for trained models opens."""
