"""The command line: `app` registers the commands, which are defined in the other files."""
