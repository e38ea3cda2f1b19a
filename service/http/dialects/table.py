"""The dialects by their names in the setting `dialects`."""

from typing import NamedTuple

from fastapi import APIRouter

from service.errors import StartError, list_names
from service.http.dialects import openai, photoprism, wd14
from service.http.dialects.open_inference import routes as open_inference
from service.http.responses.problems import Renderer


class Dialect(NamedTuple):
    """How a program speaks; `prefix` is the first part of its paths, where `render` has errors."""

    prefix: str
    router: APIRouter
    render: Renderer


DIALECTS = {
    "open-inference": Dialect("/v2", open_inference.router, open_inference.render_error),
    "openai": Dialect("/v1", openai.router, openai.render_error),
    "photoprism": Dialect("/api", photoprism.router, photoprism.render_error),
    "wd14": Dialect("/tagger", wd14.router, wd14.render_error),
}


def choose_dialects(setting: str) -> list[Dialect]:
    """Returns the dialects of a setting such as `openai,wd14`. Raises StartError."""
    names = {name.strip() for name in setting.split(",")} - {""}
    if unknown := names - {"all", *DIALECTS}:
        message = f"dialects: {list_names([*unknown])} is unknown: use all, {', '.join(DIALECTS)}"
        raise StartError(message)
    return [dialect for name, dialect in DIALECTS.items() if {"all", name} & names]
