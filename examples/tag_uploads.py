"""A web app of your own: it keeps uploaded photos' labels, which the service finds.

uvicorn --app-dir examples tag_uploads:app --port 9000
curl -T docs/photos/chelsea.jpg localhost:9000/photos/chelsea.jpg
curl 'localhost:9000/photos?label=cat'
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request

from ml_decoder_client import AsyncClient, ClientError, ServiceProblem

URL = os.environ.get("SERVICE_URL", "http://localhost:8000")


@asynccontextmanager
async def run_client(app: FastAPI) -> AsyncIterator[None]:
    """Opens one client for all requests, so that they share its connections."""
    async with AsyncClient(URL, api_key=os.environ.get("SERVICE_KEY")) as client:
        app.state.client = client
        yield


app = FastAPI(title="My photos", lifespan=run_client)
MAX_BYTES = 20 * 2**20  # the service's default too
photos: dict[str, dict[str, float]] = {}  # a database, in an app that is restarted


@app.put("/photos/{name}", status_code=201)
async def upload(name: str, request: Request) -> dict[str, float]:
    """Takes a photo as the body of the request; returns its labels and their scores."""
    client: AsyncClient = request.app.state.client
    photo = bytearray()
    async for chunk in request.stream():
        photo += chunk
        if len(photo) > MAX_BYTES:
            raise HTTPException(413, f"A photo must have at most {MAX_BYTES} bytes")
    try:
        answer = await client.predict(bytes(photo), top_k=5, threshold=0.5)
    except ServiceProblem as problem:
        if problem.code != "invalid_image":  # anything else is no mistake of the uploader's
            raise HTTPException(502, str(problem)) from problem
        raise HTTPException(422, str(problem)) from problem
    except ClientError as error:
        raise HTTPException(503, "Photos cannot be tagged now: try again later") from error
    photos[name] = {label.label: label.score for label in answer.labels}
    return photos[name]


@app.get("/photos")
def list_photos(label: str) -> list[str]:
    """Returns the photos with a label, best first."""
    having = [name for name, labels in photos.items() if label in labels]
    return sorted(having, key=lambda name: -photos[name][label])
