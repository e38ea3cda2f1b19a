"""`python -m service` is `ml-decoder`."""

from service.cli.__main__ import main

main()
