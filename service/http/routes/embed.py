"""`/embed` and `/v1/embeddings`: embeddings of photos, and of texts that share their space."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError, to_json

from service import errors
from service.errors import InvalidParameters, InvalidValue, ServiceError
from service.fields import MAX_PROMPT_CHARACTERS, validate
from service.http.requests.body import JSON, cancel_on_disconnect
from service.http.requests.json import read_json_object
from service.http.requests.parameters import KNOWN_NAMES, Host
from service.http.requests.uploads import DATA_URL, UploadShape, decode_base64, read_upload
from service.http.responses.openapi import document_embed, document_json, document_problems
from service.http.responses.problems import describe_problem
from service.http.responses.schemas import EmbedAnswer, OpenAIEmbeddings
from service.http.routes.predict import MAX_BATCH_IMAGES, limit_images
from service.http.security.keys import ACCESS_PROBLEMS, PREDICT
from service.http.security.rates import LIMITED
from service.pipeline.pipeline import Pipeline
from service.pipeline.prediction import write_embedding
from service.pipeline.teaching import embed_photo
from service.scheduling.tasks import CALLER, run_together

MAX_TEXTS = 64
# JSON may have surrogates, which the tokenizer cannot read.
_TEXT = re.compile(f"[^\ud800-\udfff]{{1,{MAX_PROMPT_CHARACTERS}}}")

Embedding: TypeAlias = NDArray[np.float32]
"""Of length 1, [D]."""
Encoding = Literal["float", "base64"]


def _check_text(text: str) -> str:
    if _TEXT.fullmatch(text) is None:
        limit = {"limit": MAX_PROMPT_CHARACTERS}
        raise PydanticCustomError("text", "Text should have 1 to {limit} characters", limit)
    return text


def _check_input(text: str) -> str:
    return text if DATA_URL.match(text) else _check_text(text)


_OneOrMore = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
_Texts = Field(max_length=MAX_TEXTS, fail_fast=True)


class EmbedFields(BaseModel):
    """The fields of `/embed` besides its images."""

    model_config = ConfigDict(extra="forbid")

    texts: Annotated[list[Annotated[str, AfterValidator(_check_text)]], _Texts, _OneOrMore] = Field(
        default=[], description="For models whose texts share the images' space: encoded as given."
    )
    encoding: Encoding | None = Field(default=None, description="As in the query string.")


class OpenAIRequest(BaseModel):
    """The body of `/v1/embeddings`."""

    model_config = ConfigDict(extra="forbid")

    input: Annotated[
        list[Annotated[str, AfterValidator(_check_input)]], _Texts, Field(min_length=1), _OneOrMore
    ] = Field(
        description=f"A text or up to {MAX_TEXTS}. Up to {MAX_BATCH_IMAGES} of them may be images, "
        "as `data:image/jpeg;base64,...`."
    )
    model: str | None = Field(default=None, description="The served model; may be left out.")
    encoding_format: Encoding = "float"
    dimensions: int | None = Field(default=None, description="Only the embedding's own width.")
    user: str | None = Field(default=None, description="Ignored.")


_SHAPE = UploadShape(MAX_BATCH_IMAGES, batch=True, fields=tuple(EmbedFields.model_fields))
_PROBLEMS = (
    *ACCESS_PROBLEMS,
    errors.CrossSite,
    errors.BodyError,
    errors.InvalidParameters,
    errors.TooManyImages,
    errors.NoSharedSpace,
    errors.TextNotEncodable,
    errors.QueueFull,
    errors.InferenceFailed,
    errors.UnavailableError,
    errors.DeadlineExceeded,
)

router = APIRouter(tags=["predict"], dependencies=[*PREDICT, LIMITED, KNOWN_NAMES])


@router.post(
    "/embed",
    summary="Embeddings of up to 16 images and 64 texts",
    response_model=EmbedAnswer,
    responses=document_problems(*_PROBLEMS, errors.FieldError),
    openapi_extra=document_embed(_SHAPE, EmbedFields),
)
async def embed(
    request: Request,
    host: Host,
    encoding: Annotated[
        Encoding | None,
        Query(description="`float`: a list of numbers; `base64`: little-endian float32 in base64."),
    ] = None,
) -> Response:
    """Returns the embeddings of images: form fields, or base64 in JSON; and of texts.

    All have length 1, so that a dot product is the cosine. Embeddings of texts fit those of images
    in models of two towers (CLIP, SigLIP) only; other models refuse them. If an image cannot be
    used, its entry has the problem.
    """
    pipeline = host.pipeline
    shape = UploadShape(limit_images(host.settings), batch=True, fields=_SHAPE.fields)
    upload = await read_upload(request, shape, host.settings)
    fields = validate(EmbedFields, upload.fields, "body")
    if not (upload.images or fields.texts):
        raise errors.MissingField(shape.image_field)
    if encoding is not None and fields.encoding not in (None, encoding):
        raise errors.RepeatedField("encoding")
    work = _embed(pipeline, upload.images, fields.texts)
    photos, texts = await cancel_on_disconnect(request, work)
    card = pipeline.bundle.card
    found = [each for each in (*photos, *texts) if not isinstance(each, ServiceError)]
    form = encoding or fields.encoding or "float"
    answer = {
        "model": {"name": card.name, "version": card.version},
        "encoder": pipeline.bundle.encoder_fingerprint,
        "width": len(found[0]) if found else None,
    }

    def describe(each: Embedding | ServiceError) -> dict[str, Any]:
        if isinstance(each, ServiceError):
            return {"error": describe_problem(each).model_dump(exclude_none=True)}
        return {"embedding": write_embedding(each, packed=form == "base64")}

    def write() -> bytes:
        images = [describe(each) for each in photos]
        return to_json({**answer, "images": images, "texts": [describe(each) for each in texts]})

    return Response(await asyncio.to_thread(write), media_type=JSON)


@router.post(
    "/v1/embeddings",
    summary="Embeddings for clients of OpenAI's API",
    response_model=OpenAIEmbeddings,
    responses=document_problems(*_PROBLEMS, errors.ImageError, errors.UnknownModel),
    openapi_extra=document_json(OpenAIRequest, example={"input": ["a photo of a dog"]}),
)
async def embed_for_openai(request: Request, host: Host) -> Response:
    """Returns the embeddings of texts, and of images in `data:` URLs, in the order of `input`.

    As `/embed`, in the shape of OpenAI's API; errors are those of this service. If an image cannot
    be used, the request fails. Tokens are not counted: `usage` is 0.
    """
    pipeline = host.pipeline
    asked = validate(OpenAIRequest, await read_json_object(request, host.settings), "body")
    card = pipeline.bundle.card
    if asked.model not in (None, card.name):
        raise errors.UnknownModel("Model", str(asked.model), [card.name])
    inputs = dict(enumerate(asked.input))
    images = {place: each for place, each in inputs.items() if DATA_URL.match(each)}
    texts = {place: each for place, each in inputs.items() if place not in images}
    if len(images) > limit_images(host.settings):
        raise errors.TooManyImages(limit_images(host.settings))
    CALLER.get().count_photos(len(images))
    work = _embed(pipeline, (*images.values(),), (*texts.values(),))
    photos, rows = await cancel_on_disconnect(request, work)
    by_place = dict(zip((*images, *texts), (*photos, *rows), strict=True))
    found = []
    for place in inputs:
        each = by_place[place]
        if isinstance(each, ServiceError):
            each.detail = f"Input {place + 1} of {len(inputs)}: {each.detail or each.title}"
            raise each
        found.append(each)
    if asked.dimensions not in (None, len(found[0])):
        reason = f"The embeddings have {len(found[0])} values: leave it out"
        raise InvalidParameters([InvalidValue("body", "dimensions", reason)])
    packed = asked.encoding_format == "base64"

    def write() -> bytes:
        data = [
            {"object": "embedding", "index": i, "embedding": write_embedding(each, packed=packed)}
            for i, each in enumerate(found)
        ]
        usage = {"prompt_tokens": 0, "total_tokens": 0}
        return to_json({"object": "list", "data": data, "model": card.name, "usage": usage})

    return Response(await asyncio.to_thread(write), media_type=JSON)


async def _embed(
    pipeline: Pipeline, images: Sequence[bytes | str], texts: Sequence[str]
) -> tuple[list[Embedding | ServiceError], list[Embedding]]:
    """Returns the embedding of each image, or why it cannot be used, and of each text."""
    deadline = pipeline.make_deadline()
    rows = await _embed_texts(pipeline, texts, deadline) if texts else []
    return await run_together(_embed_image(pipeline, each, deadline) for each in images), rows


async def _embed_image(
    pipeline: Pipeline, image: bytes | str, deadline: float
) -> Embedding | ServiceError:
    try:
        return await embed_photo(pipeline, decode_base64(image), deadline)
    except (errors.ImageError, errors.MalformedBody) as error:
        return errors.without_frames(error)


async def _embed_texts(
    pipeline: Pipeline, texts: Sequence[str], deadline: float
) -> list[Embedding]:
    encoders = pipeline.catalogue.encoders
    if encoders is None or not pipeline.bundle.card.has_two_towers:
        raise errors.NoSharedSpace
    if not encoders.encodes_text:
        raise errors.TextNotEncodable
    try:
        with pipeline.admit():
            async with asyncio.timeout_at(deadline):
                return list(await encoders.encode_texts(texts))
    except TimeoutError as error:
        raise errors.DeadlineExceeded("deadline exceeded while encoding texts") from error
    except errors.InvalidLabelSet as error:
        raise InvalidParameters([InvalidValue("body", "texts", error.reason)]) from error
