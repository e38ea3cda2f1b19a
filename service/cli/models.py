"""Models that `ml-decoder get` knows. As a script, asks the hub for one of them.

Imports the standard library only: `make serve` runs it before it installs anything.
"""

import os
import sys
from difflib import get_close_matches
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

HUB = "hf-hub:"
RAM = "ram-plus"
_TIMEOUT = 20  # seconds


class Model(NamedTuple):
    """A published model. `origin` has the weights that the ONNX files of `hub` were made from."""

    hub: str
    origin: str | None
    license: str


def _siglip2(size: str) -> Model:
    return Model(f"onnx-community/siglip2-{size}-ONNX", f"google/siglip2-{size}", "Apache-2.0")


MODELS = {
    "siglip2-base": _siglip2("base-patch16-256"),
    "siglip2-base-384": _siglip2("base-patch16-384"),
    "siglip2-large": _siglip2("large-patch16-256"),
    "siglip2-so400m": _siglip2("so400m-patch14-384"),
    "clip-vit-l-14": Model("Xenova/clip-vit-large-patch14", "openai/clip-vit-large-patch14", "MIT"),
    "clip-vit-b-32": Model("Xenova/clip-vit-base-patch32", "openai/clip-vit-base-patch32", "MIT"),
    RAM: Model("xinyu1205/recognize-anything-plus-model", None, "Apache-2.0"),
}


def find_model(name: str) -> Model:
    """Returns a model by its name, or by `hf-hub:owner/name`. Raises ValueError for another."""
    if name.startswith(HUB) and name.count("/") == 1:
        return Model(name.removeprefix(HUB), None, "unknown")
    if name not in MODELS:
        near = get_close_matches(name, MODELS, 1, 0.0)[0]
        raise ValueError(f"no model {name}: did you mean {near}? Others are {HUB}OWNER/NAME")
    return MODELS[name]


def _ask_hub(repository: str) -> None:
    """Raises ValueError with the next step if the hub is out of reach or has no such repository."""
    hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    token = os.environ.get("HF_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = f"{hub}/{repository}/resolve/main/config.json"
    try:
        urlopen(Request(url, headers=headers, method="HEAD"), timeout=_TIMEOUT).close()
    except HTTPError as error:
        if error.code in {401, 403, 404} and error.headers["X-Error-Code"] != "EntryNotFound":
            raise ValueError(
                f"{url} is {error.code}: check the name, or set an HF_TOKEN that may read it"
            ) from error
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise ValueError(
            f"{hub} cannot be reached ({reason}): check the network and HF_ENDPOINT, give a folder "
            "with the files (FROM=FOLDER), or set HF_HUB_OFFLINE=1 if they are in its cache"
        ) from error


if __name__ == "__main__":
    try:
        if sys.argv[1] == RAM:
            raise ValueError(
                f"{RAM} needs torch: pip install -e '.[export]', then ml-decoder get {RAM}"
            )
        model = find_model(sys.argv[1])
        if not os.environ.get("HF_HUB_OFFLINE"):
            _ask_hub(model.hub)
    except ValueError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
