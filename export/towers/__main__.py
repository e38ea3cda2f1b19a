"""The work of `ml-decoder get`, which starts it by name with a request in JSON."""

import sys

from export.__main__ import report
from export.towers.build import TowersRequest, build_bundle
from models.commands import run_command

if __name__ == "__main__":
    request = TowersRequest.model_validate_json(sys.argv[1])
    run_command(lambda: report(lambda left_out: build_bundle(request, left_out)))
