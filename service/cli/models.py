"""Models that `ml-decoder get` knows. As a script, asks the hub for one of them.

Imports the standard library only: `make serve` runs it before it installs anything.
"""

import os
import re
import sys
from difflib import get_close_matches
from http.client import HTTPException
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

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
    if found := re.fullmatch(HUB + r"([\w.-]+/[\w.-]+)", name, re.ASCII):
        return Model(found[1], None, "unknown")
    if name not in MODELS:
        near = get_close_matches(name, MODELS, 1, 0.0)[0]
        raise ValueError(f"no model {name}: did you mean {near}? Others are {HUB}OWNER/NAME")
    return MODELS[name]


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:  # would send the token to another host
        return None


def _ask_hub(repository: str) -> None:
    """Raises ValueError with the next step if the hub is out of reach or has no such repository."""
    hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    token = os.environ.get("HF_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = f"{hub}/{repository}/resolve/main/config.json"
    opener = build_opener(_NoRedirects)
    try:
        answer = opener.open(Request(url, headers=headers, method="HEAD"), timeout=_TIMEOUT)
    except HTTPError as error:
        answer = error
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise ValueError(
            f"{hub} cannot be reached ({reason}): check the network and HF_ENDPOINT, give a folder "
            "with the files (FROM=FOLDER), or set HF_HUB_OFFLINE=1 if they are in its cache"
        ) from error
    has, moved = answer.headers.get, answer.headers.get("Location", "")
    if not (has("X-Repo-Commit") or has("X-Error-Code") == "EntryNotFound" or moved[:1] == "/"):
        raise ValueError(
            f"{url} is answered by {answer.status}: check the name, set an HF_TOKEN that may read "
            "it, log in to the network, or repeat the command later"
        )


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
