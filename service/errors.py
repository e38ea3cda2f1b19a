"""Every error that the service raises on purpose, with status, code and title of its answer."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TypeVar

# An answer repeats at most 80 characters of a client's name, and 10 names.
_MAX_CHARACTERS = 80
MAX_NAMES = 10
_CONTROLS = re.compile("[\0-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
_RAW_STEP = (
    "export it as JPEG, or take its embedded preview (exiftool -b -JpgFromRaw or -PreviewImage)"
)
# An unknown name is compared with at most 1,000 known ones, in a few milliseconds. With 50,000
# labels, this would block the event loop for a second.
_MAX_COMPARED = 1000

ErrorT = TypeVar("ErrorT", bound=Exception)


def quote(name: str) -> str:
    """Returns text from a client in quotes: printable, on one line, at most 80 characters of it."""
    return repr(name[:_MAX_CHARACTERS])


def escape(text: str) -> str:
    """Returns text with characters that control a terminal as `ascii` writes them."""
    return _CONTROLS.sub(lambda control: ascii(control[0])[1:-1], text)


def find_close(name: str, known: Sequence[str]) -> str | None:
    """Returns the known name that is most similar to `name`; None if none is similar."""
    matches = get_close_matches(name[:_MAX_CHARACTERS], known[:_MAX_COMPARED], 1)
    return matches[0] if matches else None


def describe_unknown(name: str, known: Sequence[str]) -> str:
    """Returns the end of a sentence about a name that a route does not take."""
    listed = f" Known names: {', '.join(known)}" if known else " It takes none"
    return f"unknown{_suggest(name, known)}{listed}"


def without_frames(error: ErrorT) -> ErrorT:
    """Returns an error without traceback, cause and context: their frames keep photos alive."""
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error


def list_names(names: Sequence[str]) -> str:
    """Returns the first ten names in quotes, and the number of the others."""
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"{', '.join(map(quote, names[:MAX_NAMES]))}{more}"


def _describe_sets(names: Sequence[str]) -> str:
    return f"Known label sets: {list_names(names)}." if names else "There are no label sets."


def _suggest(name: str, *known: Sequence[str]) -> str:
    """Returns the end of a sentence with the most similar name of the first kind that has one."""
    close = next(filter(None, (find_close(name, kind) for kind in known)), None)
    return "." if close is None else f"; did you mean {quote(close)}?"


class ServiceError(Exception):
    """Base of all errors; its message is for logs, its attributes are for clients."""

    status = 500  # of HTTP
    code = "internal_error"  # stable name for programs
    title = "Internal error"  # a sentence for all errors of a class
    detail: str | None = None  # a sentence about this error, if there is more to say
    retry_after_seconds: float | None = None  # None if a retry does not help
    field: str | None = None  # of the body that is wrong, as in `ProblemValue.name`

    def __init__(self, *message: object, retry_after_seconds: float | None = None) -> None:
        super().__init__(*message)
        if retry_after_seconds is not None:
            self.retry_after_seconds = retry_after_seconds

    def describe(self) -> str:
        """Returns all that a client may read, as one line."""
        return ". ".join(filter(None, (self.title, self.detail)))


def list_coded(*bases: type[ServiceError]) -> Iterator[type[ServiceError]]:
    """Yields those of the classes and of all classes below them that have a code of their own."""
    for base in bases:
        if "code" in vars(base):
            yield base
        yield from list_coded(*base.__subclasses__())


class _DetailedError(ServiceError):
    """Its message is `detail`: `values` replace each `{}`, names in quotes, and each `{!s}`.

    Without a detail, the only value is the message, for logs.
    """

    def __init__(self, *values: object, detail: str | None = None, **more: float | None) -> None:
        self.detail = detail or self.detail
        if values and self.detail:
            self.detail = self.detail.format(*map(_quote_names, values))
        super().__init__(*([self.detail] if self.detail else values), **more)


class _Quoted(str):
    def __format__(self, spec: str) -> str:
        return quote(self)


def _quote_names(value: object) -> object:
    if isinstance(value, tuple):
        return list_names(value)
    return _Quoted(value) if isinstance(value, str) else value


class RequestError(_DetailedError):
    """The request is invalid; no image was decoded."""


class RouteNotFound(RequestError):
    status, code, title = 404, "not_found", "Not found"
    detail = "There is no such path; /docs lists the paths."


class MethodNotAllowed(RequestError):
    status, code, title = 405, "method_not_allowed", "Method not allowed"
    detail = "The header Allow lists the methods of this path."


class Unauthorized(RequestError):
    status, code, title = 401, "unauthorized", "A valid key is needed"
    detail = "Send a key: `Authorization: Bearer KEY`, or `X-API-Key: KEY`."


class Forbidden(RequestError):
    status, code, title = 403, "forbidden", "The key does not permit this"
    detail = "Changing label sets takes an administration key."


class HostNotAllowed(RequestError):
    status, code = 403, "host_not_allowed"
    title = "Browsers may not use the service under this host name"
    detail = (
        "If {} is right, add it to ML_DECODER_ALLOWED_HOSTS, or set keys; IP addresses and "
        "localhost need neither."
    )


class CrossSite(RequestError):
    status, code, title = 403, "cross_site", "A page of another site may not send this request"
    detail = (
        "The page is from {}, the service is at {}: add the origin to ML_DECODER_CORS_ORIGINS, or "
        "let your proxy pass on the header Host."
    )


class RateLimited(RequestError):
    status, code, title = 429, "rate_limited", "Too many requests"
    detail = "Try again after the seconds in Retry-After."
    retry_after_seconds = 1

    def __init__(self, retry_after_seconds: float) -> None:
        super().__init__(retry_after_seconds=retry_after_seconds)


class BodyError(RequestError):
    """The body cannot be read, whatever is in it."""


class MalformedBody(BodyError):
    status, code, title = 400, "malformed_body", "The request body cannot be parsed"
    detail = "{!s}."


class BodyTimeout(BodyError):
    status, code, title = 408, "body_timeout", "The request body came too slowly"
    detail = "The request body did not arrive within {:g} seconds."


class BodyTooLarge(BodyError):
    status, code, title = 413, "body_too_large", "The request body is too large"
    detail = "{!s} is larger than {} bytes."


class UnsupportedMediaType(BodyError):
    status, code, title = 415, "unsupported_media_type", "The Content-Type is not supported"
    detail = "Send the body as one of: {!s}."


class UnsupportedContentEncoding(BodyError):
    status, code = 415, "unsupported_content_encoding"
    title = "The Content-Encoding is not supported"
    detail = "Send the body without a Content-Encoding."


class FieldError(RequestError):
    """A field of the body or the query string is missing, unknown or given twice."""


class MissingField(FieldError):
    status, code, title = 422, "missing_field", "A field is missing"
    detail = "Field {} is missing."


class UnknownField(FieldError):
    status, code, title = 422, "unknown_field", "A field is unknown"
    detail = "Field {} is {!s}."


class RepeatedField(FieldError):
    status, code, title = 422, "repeated_field", "A parameter is given more than once"
    detail = "{} is given more than once."


class TooManyImages(RequestError):
    status, code, title = 422, "too_many_images", "Too many images in one request"
    detail = "This route takes at most {} image(s) in one request."


class UrlError(RequestError):
    """The service cannot fetch the image of a URL."""


class UrlInputOff(UrlError):
    status, code, title = 422, "url_input_off", "This service takes no URLs of images"
    detail = "Send the image itself."


class UrlNotUsable(UrlError):
    """Gives no reason: it would describe our network to the client."""

    status, code, title = 422, "url_not_usable", "The image could not be fetched"
    detail = "The URL must be https and public, and must return an image."


class OriginTimeout(UrlError):
    status, code, title = 504, "origin_timeout", "The image took too long to fetch"
    detail = "The image did not arrive within {:g} seconds."


@dataclass(frozen=True)
class ProblemValue:
    """One value that is not valid, of `query`, `path` or `body`."""

    where: str
    name: str  # of the parameter; in a list with its position: `labels.0.threshold`
    reason: str


class InvalidParameters(RequestError):
    status, code, title = 422, "invalid_parameters", "A parameter is not valid"

    def __init__(self, values: Sequence[ProblemValue]) -> None:
        self.values = list(values)
        names = ", ".join(dict.fromkeys(f"'{value.name}'" for value in values))
        self.detail = f"Invalid: {names}."
        self.field = self.values[0].name if values else None
        super().__init__()

    def describe(self) -> str:
        """Returns the reasons too."""
        reasons = "; ".join(f"'{value.name}': {value.reason}" for value in self.values)
        return f"{self.title}. {reasons}"


class OtherWidth(RequestError):
    status, code, title = 400, "other_width", "The embeddings of this model have another width"
    detail = "dimensions is {}: leave it out, or send {}."
    field = "dimensions"


class InvalidTensors(RequestError):
    status, code, title = 400, "invalid_tensors", "The tensors are not valid"
    detail = "{!s}."


class UnknownModel(RequestError):
    status, code, title = 404, "unknown_model", "There is no such model or version"
    detail = "{!s} {} is not served: use {!s}."


class ImageError(_DetailedError):
    """The image cannot be used."""


class InvalidImage(ImageError):
    """The message of a decoder is for logs only; `detail` is fixed wording."""

    status, code, title = 400, "invalid_image", "The file is damaged or is not an image"


class EmptyImage(InvalidImage):
    status, code, title = 400, "empty_image", "The file is empty"
    detail = "It has 0 bytes: check the file, and what sends it."


class UnsupportedImage(ImageError):
    status, code, title = 415, "unsupported_image", "The image type is not supported"
    detail = "The file's type is {!s}: {!s}. Supported types: {!s}."

    def __init__(self, kind: str, supported: Sequence[str], step: str | None = None) -> None:
        more = "" if "HEIF" in supported else "; HEIC and AVIF need the extra heif"
        usual = _RAW_STEP if kind.startswith("RAW") else "save the image in another format"
        super().__init__(kind, step or usual, f"{', '.join(supported)}{more}")


class TooManyPixels(ImageError):
    """`pixels` are the image's, if they are over `limit`, which may be that of `file_bytes`."""

    status, code, title = 413, "too_many_pixels", "The image has too many pixels"

    def __init__(
        self,
        limit: int,
        pixels: int | None = None,
        *,
        where: str = "(width x height)",
        file_bytes: int | None = None,
    ) -> None:
        super().__init__(f"over {limit} pixels {where}")
        self.pixels, self.where = pixels, where
        self.detail = f"At most {limit} pixels {where} are read."
        if file_bytes is not None:
            self.detail = (
                f"Of a file of {file_bytes} bytes at most {limit} pixels {where} are read: send a "
                "blank image smaller, or as JPEG."
            )


class PhotoSuspected(ImageError):
    """A worker process crashed while it processed the photo; 429, which proxies do not repeat."""

    status, code, title = 429, "photo_suspected", "A process crashed while it processed this photo"
    detail = "The photo is refused for some seconds, so that it cannot end other processes."
    retry_after_seconds = 10


class QuestionError(_DetailedError):
    """The question does not fit the labels; the detail begins with the invalid names."""


class UnknownLabel(QuestionError):
    status, code, title = 422, "unknown_label", "A label is unknown"
    detail = "{}{!s} Searched label sets: {}."

    def __init__(
        self,
        names: tuple[str, ...],
        sets: Sequence[str],
        known: Sequence[Sequence[str]],
        other: tuple[str, str] | None = None,
    ) -> None:
        """`known` are kinds of names; `other` a language in which the first name means a label."""
        hint = f"; send lang={other[0]}, in which it means {quote(other[1])}." if other else ""
        super().__init__(names, hint or _suggest(names[0], *known), tuple(sets))


class UnknownCategory(QuestionError):
    status, code, title = 422, "unknown_category", "A category is unknown"
    detail = "{}{!s}"

    def __init__(self, names: tuple[str, ...], sets: Sequence[str], known: Sequence[str]) -> None:
        hint = f". The labels of {list_names(sets)} have no categories."
        if known:
            hint = f"{_suggest(names[0], known)} Known categories: {list_names(known)}."
        super().__init__(names, hint)


class UnknownParent(QuestionError):
    status, code, title = 422, "unknown_parent", "A parent is unknown"
    detail = "{}{!s}"

    def __init__(
        self, names: tuple[str, ...], known: Sequence[str], words: Sequence[Sequence[str]]
    ) -> None:
        """`words` are kinds of words that mean parents."""
        hint = f"{_suggest(names[0], *words)} Known parents: {list_names(known)}."
        super().__init__(names, hint if known else ". The labels have no parents.")


class UnknownLanguage(QuestionError):
    status, code, title = 422, "unknown_language", "The label sets lack this language"
    detail = "{}. {!s}"

    def __init__(self, lang: str, known: Sequence[str]) -> None:
        hint = f"Known languages: {list_names(known)}." if known else "They have no translations."
        super().__init__(lang, hint)


class AmbiguousWord(QuestionError):
    status, code, title = 422, "ambiguous_word", "A word means several labels"
    detail = "{} means {}: send one of these."


class ConflictingLabels(QuestionError):
    status, code, title = 422, "conflicting_labels", "A label is both included and excluded"
    detail = "{}: leave them out of `include` or of `exclude`."


class UnknownLabelSet(QuestionError):
    status, code, title = 422, "unknown_label_set", "A label set is unknown"
    detail = "{}{!s} {!s}"

    def __init__(
        self, names: tuple[str, ...], known: Sequence[str], *, by_default: bool = False
    ) -> None:
        if names:
            default = ", the default of requests that name none" if by_default else ""
            hint = f"{default}{_suggest(names[0], known)}"
        else:
            hint = "There is no default: send `candidate_labels=cat,dog` or a `label_set`."
        super().__init__(names, hint, _describe_sets(known))


class NoMaps(QuestionError):
    status, code, title = 409, "no_maps", "This model has no maps of these labels"
    detail = "{}: ask for these label sets without `explain`."


class NotMeasured(QuestionError):
    status, code, title = 422, "not_measured", "The bundle has no thresholds for this purpose"
    detail = "{}: {!s}send a number or `calibrated`."

    def __init__(self, names: tuple[str, ...], purpose: str, photos: str) -> None:
        command = f"ml-decoder export --bundle BUNDLE {photos} --out BUNDLE"
        step = f"measure `{purpose}` with `{command}`, then start the service again; or "
        super().__init__(names, step * bool(photos))


class LabelSetError(_DetailedError):
    """A label set cannot be registered, read, replaced or deleted as asked."""


class InvalidLabelSet(LabelSetError):
    status, code, title = 422, "invalid_labels", "The labels cannot be used"
    detail = "{!s}."

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TextNotEncodable(LabelSetError):
    status, code = 422, "embedding_needed"
    title = "This model encodes no text: give every label an embedding"
    detail = "Label {} has none."


class OtherEmbeddings(LabelSetError):
    status, code = 409, "other_embeddings"
    title = "The embeddings come from another embedding space than the model's"
    detail = "embedding_space is {}; the model's is {}."


class NoOpenHead(LabelSetError):
    status, code, title = 409, "no_open_head", "This model knows its trained labels only"
    detail = "Other labels need a bundle with an open head, or photos from which they learn."


class NoBackground(LabelSetError):
    status, code, title = 409, "no_background", "This model cannot learn from photos yet"
    detail = (
        "It needs a few hundred photos without labels: ml-decoder export --bundle BUNDLE "
        "--background FOLDER --out BUNDLE, then start the service again."
    )


class ScoresCompete(LabelSetError):
    status, code, title = 409, "scores_compete", "The scores of these labels compete (softmax)"
    detail = (
        "Labels learn from photos on calibrated scores: ml-decoder export --bundle BUNDLE "
        "--open-photos FOLDER --out BUNDLE, then start the service again."
    )


class NoExamples(LabelSetError):
    status, code, title = 404, "no_examples", "The label has no examples"
    detail = "{} of {} has not learnt from photos."


class NoSharedSpace(ServiceError):
    status, code, title = 409, "no_shared_space", "This model has embeddings of photos only"
    field = "input"
    detail = (
        "Texts and photos share a space in CLIP and SigLIP; /v1/embeddings takes photos as "
        "data:image/jpeg;base64,..."
    )


class LabelSetNotFound(LabelSetError):
    status, code, title = 404, "label_set_not_found", "There is no such label set"
    detail = "{}{!s}{!s}"

    def __init__(self, name: str, known: Sequence[str] = ()) -> None:
        super().__init__(name, _suggest(name, known), f" {_describe_sets(known)}" if known else "")


class LabelSetExists(LabelSetError):
    status, code = 409, "label_set_exists"
    title = "Another label set has this name; PUT replaces it"
    detail = (
        "{} has other labels, prompts, embeddings, thresholds or words, or another calibration."
    )


class LabelSetReadOnly(LabelSetError):
    status, code = 409, "label_set_read_only"
    title = "This label set is read-only, and its name is reserved"
    detail = "{}: choose another name."


class LabelSetChanged(LabelSetError):
    """`version` is the current one; None if there is no such set."""

    status, code = 412, "label_set_changed"
    title = "The label set is not in the version that the request demands"
    detail = "{} {!s}: read it again before you change it."

    def __init__(self, name: str, version: str | None) -> None:
        super().__init__(name, "does not exist" if version is None else f"has version {version}")


class TooManyLabelSets(LabelSetError):
    status, code = 409, "too_many_label_sets"
    title = "The label store is at its limit of sets or labels"
    detail = (
        "At most {} sets with {} labels, those of other bundles too: delete some, or raise the "
        "service's max_label_sets or max_labels."
    )


class VersionNotReached(LabelSetError):
    status, code = 409, "version_not_reached"
    title = "The label sets have not reached this version"
    detail = "min_version is {}; the label store is at {}."


class StoreError(ServiceError):
    """A call of the label store failed and changed nothing."""


class StoreUnavailable(StoreError):
    """The label store is unreachable or locked; the message is one line, with its address."""

    status, code, title = 503, "store_unavailable", "The label store does not answer"
    retry_after_seconds = 2


class StoreIncompatible(StoreUnavailable):
    """The file is not a database, or its tables have another version."""


class StoreFull(StoreError):
    status, code, title = 507, "store_full", "The label store has no space left"


class StoreReadOnly(StoreError):
    """There is no label store, or it is read-only; the message is one line, with its address."""

    status, code, title = 409, "store_read_only", "The label store cannot be written"
    detail = "Its operator must set label_store to a place that the service can write."


class BusyError(ServiceError):
    """The service is healthy but overloaded."""


class QueueFull(BusyError):
    status, code, title = 429, "queue_full", "The service is busy"
    retry_after_seconds = 1


class TooManyConnections(BusyError):
    status, code, title = 429, "too_many_connections", "The service has too many connections"
    retry_after_seconds = 1


class DeadlineExceeded(BusyError):
    status, code, title = 504, "deadline_exceeded", "The request took too long and was dropped"


class UnavailableError(ServiceError):
    """The service takes no requests."""


class NotReady(UnavailableError):
    status, code, title = 503, "not_ready", "The service is not ready"
    retry_after_seconds = 2


class Draining(UnavailableError):
    status, code, title = 503, "draining", "The service is shutting down"
    retry_after_seconds = 2


class InferenceFailed(ServiceError):
    status, code, title = 500, "inference_failed", "The model could not be run"


class OutOfMemory(InferenceFailed):
    status, code, title = 503, "out_of_memory", "The device is out of memory"
    retry_after_seconds = 1


class ServiceBroken(ServiceError):
    """The service must be restarted; the message is one line for the operator."""

    exit_code = 3


class StartError(ServiceError):
    """The service cannot start as configured; the message is one line for the operator."""


class BundleError(Exception):
    """A bundle is missing, damaged or inconsistent; the message is one line for the operator."""
