"""Writes the OpenAPI document, which the site shows.

python -m tests.project.api_reference > docs/openapi.json
"""

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

from service.http.app import create_app
from service.pipeline.served import ServedPipeline
from service.settings import Settings

_ROOT = Path(__file__).parents[2]


def read_openapi() -> dict[str, Any]:
    """The OpenAPI document of an app with default settings."""
    document: dict[str, Any] = create_app(ServedPipeline(Settings())).openapi()
    return document


def write_openapi() -> str:
    """Returns the file, with the version of the checkout: the installed one may be older."""
    document = read_openapi()
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    document["info"]["version"] = project["version"]
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(write_openapi())
