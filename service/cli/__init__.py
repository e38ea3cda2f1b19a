"""The command line: `commands.py` defines the commands; each imports what it needs when it runs."""
