"""The command line: `commands.py` has the commands, the rest is how they read and write."""
