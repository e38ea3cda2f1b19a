"""`/embed`: embeddings of photos, and of texts that share their space."""

import asyncio
import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, Field, StringConstraints

from service import errors
from service.caller import CALLER
from service.errors import ServiceError
from service.fields import MAX_PROMPT_CHARACTERS, validate
from service.http.requests.body import cancel_on_disconnect
from service.http.requests.parameters import KNOWN_NAMES, Served
from service.http.requests.uploads import UploadShape, decode_base64, read_upload
from service.http.responses import openapi
from service.http.responses.problems import describe_problem
from service.http.responses.schemas import ImageFailure, NameAndVersion
from service.http.routes.predict import MAX_BATCH_IMAGES, PHOTO_PROBLEMS, limit_images, write_answer
from service.http.security.keys import PREDICT
from service.http.security.rates import LIMITED
from service.pipeline.pipeline import Pipeline
from service.pipeline.prediction import write_embedding
from service.scheduling.tasks import run_together

MAX_TEXTS = 2048
_TEXTS_PER_UNIT = 16  # of the rate limit
_FEWER = "Send fewer texts at once (LangChain: chunk_size, LlamaIndex: embed_batch_size)."

_Text = Annotated[str, StringConstraints(min_length=1, max_length=MAX_PROMPT_CHARACTERS)]
AtMost = Field(max_length=MAX_TEXTS, fail_fast=True)
AsList = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
Encoding = Literal["float", "base64"]
Embedded: TypeAlias = NDArray[np.float32] | ServiceError  # an embedding, or an image's error


class EmbedFields(BaseModel):
    """The fields of `/embed` besides its images."""

    texts: Annotated[list[_Text], AtMost, AsList] = Field([], description="Not of all models.")


class EmbeddedItem(BaseModel):
    """An embedding of length 1: numbers, or little-endian float32 in base64."""

    embedding: list[float] | str


class EmbedAnswer(BaseModel):
    """Answer of `/embed`; its lists are in the order of the request's."""

    model: NameAndVersion
    encoder: str = Field(description="Fingerprint: compare embeddings of one encoder only.")
    width: int | None = Field(description="Of an embedding; null if there is none.", examples=[640])
    images: list[EmbeddedItem | ImageFailure]
    texts: list[EmbeddedItem]


_SHAPE = UploadShape(MAX_BATCH_IMAGES, batch=True, fields=tuple(EmbedFields.model_fields))
PROBLEMS = (
    *(*PHOTO_PROBLEMS, errors.BodyError, errors.InvalidLabelSet),
    *(errors.NoSharedSpace, errors.TextNotEncodable),
)
router = APIRouter(tags=["predict"], dependencies=[*PREDICT, LIMITED, KNOWN_NAMES])


@router.post(
    "/embed",
    response_model=EmbedAnswer,
    responses=openapi.document_problems(*PROBLEMS, errors.FieldError),
    openapi_extra=openapi.document_predict(_SHAPE, EmbedFields),
)
async def embed(
    request: Request,
    served: Served,
    encoding: Annotated[Encoding, Query(description="Of each embedding.")] = "float",
) -> Response:
    """Returns embeddings of length 1, whose dot product is the cosine.

    Those of texts fit the images in models of two towers (CLIP, SigLIP); other models refuse texts.
    If an image cannot be used, its entry has the problem.
    """
    pipeline, settings = served.pipeline, served.settings
    shape = UploadShape(limit_images(settings), batch=True, fields=_SHAPE.fields)
    upload = await read_upload(request, shape, served)
    texts = validate(EmbedFields, upload.fields, "body").texts
    if not (upload.images or texts):
        raise errors.MissingField(shape.image_field)
    with pipeline.admit():
        work = embed_all(pipeline, upload.images, texts)
        photos, rows = await cancel_on_disconnect(request, work)
    widths = (len(row) for row in (*photos, *rows) if isinstance(row, np.ndarray))
    answer = {
        "model": NameAndVersion.model_validate(pipeline.bundle.card),
        "encoder": pipeline.bundle.encoder_fingerprint,
        "width": next(widths, None),
        "images": describe_all(photos, encoding),
        "texts": describe_all(rows, encoding),
    }
    return await write_answer(served, answer)


async def embed_all(
    pipeline: Pipeline, images: Sequence[bytes | str], texts: Sequence[str]
) -> tuple[list[Embedded], list[Embedded]]:
    """Embeds images, files or base64, and texts; `admit` is up to the caller."""
    encoders, deadline = pipeline.catalogue.encoders, pipeline.make_deadline()
    rows: list[Embedded] = []
    if texts:
        if encoders is None or not pipeline.bundle.card.has_two_towers:
            raise errors.NoSharedSpace
        # The request, or its first photo, has counted one already.
        CALLER.get().charge(math.ceil(len(texts) / _TEXTS_PER_UNIT) - (not images))
        try:
            async with asyncio.timeout_at(deadline):
                rows = [*await encoders.encode_texts(texts)]
        except TimeoutError as error:
            late = errors.DeadlineExceeded("deadline exceeded while encoding texts")
            late.detail = _FEWER
            raise late from error

    async def embed_or_fail(image: bytes | str) -> Embedded:
        try:
            embedding, _ = await pipeline.embed(decode_base64(image), deadline)
        except (errors.ImageError, errors.MalformedBody) as error:
            return errors.without_frames(error)
        return embedding

    return await run_together(embed_or_fail(image) for image in images), rows


def describe_all(embedded: Sequence[Embedded], encoding: Encoding) -> Iterator[dict[str, Any]]:
    """Yields JSON values; other threads run between items: the JSON of 2,048 takes 0.2 s."""
    return (
        {"error": describe_problem(item)}
        if isinstance(item, ServiceError)
        else {"embedding": write_embedding(item, packed=encoding == "base64")}
        for item in embedded
    )
