"""Writes the OpenAPI document, which the site shows.

python -m tests.project.api_reference > docs/openapi.json
"""

import json
import sys
from typing import Any

from service.http.app import create_app
from service.pipeline.served import ServedPipeline
from service.settings import Settings


def read_openapi() -> dict[str, Any]:
    """The OpenAPI document of an app with default settings."""
    document: dict[str, Any] = create_app(ServedPipeline(Settings())).openapi()
    return document


def write_openapi() -> str:
    """Returns the file."""
    return json.dumps(read_openapi(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(write_openapi())
