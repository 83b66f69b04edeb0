"""The command line: `app` registers the commands, and the other modules define them."""
