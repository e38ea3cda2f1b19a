"""`python -m service`: the same as the command `ml-decoder`."""

from service.cli.commands import main

main()
