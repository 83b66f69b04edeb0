"""The command line: `app` is the shell, every other file is one command."""
