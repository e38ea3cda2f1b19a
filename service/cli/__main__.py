"""Entry of `ml-decoder` and `python -m service.cli`."""

import gc
import os
import signal
import sys


def main() -> None:
    """Runs the command line."""
    if os.getpid() == 1:
        # Linux ignores SIGTERM for the first process of a container unless it has a handler. The
        # server installs its own only after seconds of imports.
        signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    if sys.argv[1:2] == ["serve"]:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until it reloads: by default it ends
    gc.disable()  # imports leave no garbage, and looking for it takes a tenth of their time
    from service.cli.commands import main as run

    gc.freeze()
    gc.enable()
    run()


if __name__ == "__main__":
    main()
