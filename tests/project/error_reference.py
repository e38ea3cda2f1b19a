"""Writes the error catalogue: the classes of `service/errors.py` with cause and remedy.

python -m tests.project.error_reference > docs/errors.md
"""

import re
import sys
from collections.abc import Iterable, Iterator

from service import errors
from service.errors import ServiceError, list_coded
from tests.project.api_reference import write_table

_HEAD = """<!-- Written by `make reference` from `service/errors.py`; do not edit. -->

# Errors

Every error is `application/problem+json` (RFC 9457):

```json
{"type": "urn:ml-decoder:problem:queue_full", "title": "The service is busy", "status": 429,
 "code": "queue_full", "request_id": "6b1c0f8e3c5f4f0f9a4c3b1f7a2d9e10"}
```

- `code` is stable: programs compare it. `title`, `detail` and the values in `errors` are for
  people and may change.
- With *retry* beside the status, repeat the request after the seconds in the header `Retry-After`.
- Search the [log](operate.md#logs) for the `request_id`.
- Below `/v2` an error is `{"error": "..."}`, as the Open Inference Protocol demands, and the
  statuses 409, 415 and 422 become 400.
- nginx in front of replicas has codes of its own: see [scale.md](scale.md#what-nginx-does).
"""
_FOOT = """## Exit codes

| code | meaning | remedy |
|---|---|---|
| 0 | done; or stopped by SIGTERM | |
| 1 | some photos cannot be used, the others are done | read the lines on stderr |
| 2 | an option is invalid, or the command cannot start | read the last line on stderr |
| 3 | the service failed: a lost GPU or a run that hung | let a supervisor restart it |
"""
_FAMILIES = (
    (errors.RequestError, "The request"),
    (errors.ImageError, "The image"),
    (errors.QuestionError, "The labels that a request names"),
    (errors.LabelSetError, "Label sets"),
    (errors.StoreError, "The label store"),
    (errors.BusyError, "Load"),
    (errors.UnavailableError, "Start and stop"),
    (errors.InferenceFailed, "The model"),
)
# These errors stop the process, so that no client gets them.
_NOT_ANSWERED = (errors.ServiceBroken, errors.StartError)
# A paragraph for each code: the cause => the remedy.
_CAUSES = """
internal_error: A defect of the service. => Find the request in the log by its `request_id`, and
    report the traceback.
not_found: The path does not exist. => See `/docs` for the paths.
method_not_allowed: The path does not have this method. => Use a method in the header `Allow`.
unauthorized: The service demands a key; the request has none, or an unknown one. => Send
    `Authorization: Bearer KEY`. On the page, enter the key in its field.
forbidden: The key permits predictions only; or there are predict keys and no admin keys. => Use a
    key of `ML_DECODER_ADMIN_KEYS`.
host_not_allowed: Predictions need no key, and a browser used a host name that the service does not
    know. => Add the name to `ML_DECODER_ALLOWED_HOSTS`; or open the service by its IP address. See
    [security.md](security.md#browsers).
cross_site: No key protects the route, and a page of another site sent the request. => Add the
    page's origin to `ML_DECODER_CORS_ORIGINS`. If it is the service's own page, let the proxy pass
    on the header `Host`.
rate_limited: The key or the address sent more photos and other requests than
    `ML_DECODER_RATE_LIMIT` [permits](security.md#rate-limit-and-proxies), or an address sent more
    than 60 wrong keys a minute. => Wait as `Retry-After` says. Behind a proxy, set
    `FORWARDED_ALLOW_IPS`: else all clients share the proxy's address.
body_timeout: The body did not arrive in `ML_DECODER_BODY_TIMEOUT_SECONDS`. => Send smaller photos,
    or raise the setting for slow networks.
body_too_large: The body, or an image from a URL, is larger than `ML_DECODER_MAX_BODY_BYTES`. =>
    Send fewer or smaller photos, or raise the setting.
malformed_body: The body is not valid JSON, base64 or a valid multipart form. => Read `detail`. Let
    a library write the form, its `Content-Type` included.
unsupported_media_type: The route does not read this `Content-Type`. => Use one of those in
    `detail`. For a bare image: `image/jpeg`, not `application/x-www-form-urlencoded`.
unsupported_content_encoding: The body is compressed. => Send it without `Content-Encoding`; JPEG
    and PNG are compressed already.
missing_field: A required field is missing. => Add the field that `detail` names.
unknown_field: The request has a parameter that the route does not have. => Correct its name;
    `detail` has the known names.
repeated_field: A parameter is given in two places, or several times without being a list. => Give
    it once.
too_many_images: The request has more images than the route takes. => Use `/predict/batch` for up to
    16 images; send several requests for more.
url_input_off: The request has a `url`, and `ML_DECODER_URL_INPUT` is false. => Send the image, or
    set it to true.
url_not_usable: The URL is not https, not public, or returns no image. The error does not say which,
    so that it does not describe the network. => Check that the URL opens from outside your network;
    or send the image.
origin_timeout: The server of the URL took longer than `ML_DECODER_URL_TIMEOUT_SECONDS`. => Try
    again, or send the image.
invalid_parameters: A value has the wrong type or is out of range. => `errors` lists the values and
    reasons.
invalid_tensors: The tensors of a `/v2` request do not fit the model. => Compare names, types and
    shapes with `GET /v2/models/NAME`.
unknown_model: The name or version in a `/v2` path is not served. => Use the name in `detail`, or
    set `ML_DECODER_MODEL_ALIAS`.
invalid_image: The file is damaged, ends early, or is not an image. => Open it in a viewer and save
    it again. [Limits](limits.md#images) lists the damage that is accepted.
empty_image: The image has 0 bytes. => Check the path; with curl, the `@` before it.
unsupported_image: The file is an image of a type that is not read; the detail names the type. =>
    Convert it to JPEG or PNG. For HEIC and AVIF install the extra `heif`.
too_many_pixels: Width x height is larger than `ML_DECODER_MAX_PIXELS`, or a side than 65,535 pixels
    (of a JPEG 65,500, of an AVIF 32,768); or, as only large blank images can be, larger than
    262,144 and 10,000 for each byte of the file. => Resize the photo: the model sees a few hundred
    pixels. Or raise the setting.
photo_suspected: A worker process crashed less than 10 seconds ago while it processed this photo,
    and perhaps others. => Wait for the seconds in `Retry-After` and send it again. If the log has
    `worker ended` each time, report the photo as a bug ([Security](security.md)).
unknown_label: A name in `include` or `exclude` is in none of the searched label sets. => Correct
    the name, or add its set with `label_set`. For a new label use `candidate_labels`.
conflicting_labels: A label is in both `include` and `exclude`. => Remove it from one of the two.
unknown_label_set: No label set has this name: it was never registered, was deleted, or belongs to
    another embedding space. => `GET /labels` lists the sets. After a change of the text encoder,
    register a set with embeddings of its own again.
no_maps: The request has `explain`, and the head of a label has no maps. => Leave out `explain`;
    `maps` in `/info` shows which heads have maps.
invalid_labels: The labels of a set are invalid: names twice, an empty name, too many, or another
    reason in `detail`. => Correct what `detail` names.
embedding_needed: A label has no embedding, and the bundle has no text encoder. => Send embeddings,
    or export the bundle with a text encoder.
other_embeddings: `embedding_space` is not that of the bundle. => Compute the embeddings with the
    bundle's encoder and template (`/info`).
no_open_head: The bundle has trained labels only. => Use a bundle with an open head, such as the
    default one.
label_set_not_found: No label set has this name. => `GET /labels` lists the sets.
label_set_exists: `POST` with the name of a set that has other labels, prompts, embeddings,
    thresholds or calibration. => Use `PUT` to replace it. See
    [thresholds.md](thresholds.md#calibrate-labels-of-your-own) for calibrated sets.
label_set_read_only: The set belongs to the bundle or to the folder `ML_DECODER_LABEL_SETS`. => Use
    another name; or change the folder and restart.
label_set_changed: `If-Match` names an older version, or `If-None-Match: *` meets an existing set.
    => Read the set, apply the change to what you read, and send its new `ETag`.
too_many_label_sets: The store has reached `ML_DECODER_MAX_LABEL_SETS` or `ML_DECODER_MAX_LABELS`.
    => Delete sets, or raise the setting.
version_not_reached: `min_version` is higher than any version of the store. => Use the version that
    this service's registration returned; check that all replicas share one store.
store_unavailable: The database of label sets is unreachable or locked. Predictions continue with
    the sets in memory. => Check the database; the log has its address. The service needs no
    restart.
store_read_only: The label store is on a read-only disk or server, or the service has no place for
    one. Its sets are served. => Set `ML_DECODER_LABEL_STORE` to a place that the service can write,
    or register the set at a service that can.
store_full: The disk of the label store is full. => Free space, then repeat the request.
queue_full: `ML_DECODER_QUEUE_SIZE` photos wait, or bodies and long answers take
    `ML_DECODER_MAX_HELD_BYTES`. => Wait as `Retry-After` says; the [client](client.md) does. If it
    happens often, add replicas.
too_many_connections: The process has `ML_DECODER_MAX_CONNECTIONS` connections, none of them idle;
    more are accepted for health only. => Try again after the seconds in `Retry-After`. If it
    happens often, send fewer requests at once, raise the setting, or add replicas
    ([Limits](limits.md#connections)).
deadline_exceeded: The request, with all its photos, took longer than `ML_DECODER_DEADLINE_MS`: it
    was dropped. => Send fewer requests at once, fewer photos or labels, or add replicas.
not_ready: The model is loading, or could not be loaded. => Wait for `/readyz`. If it stays 503,
    read the log.
draining: The service is stopping. => Send the request to another replica, or wait until the service
    has started again.
inference_failed: The engine failed on the batch of this request. => Find the request in the log by
    its `request_id`. If it repeats, check the bundle with `ml-decoder info`.
out_of_memory: The device had no memory for the batch, or the machine had none to decode the photo.
    => Stop other programs, set a smaller `ML_DECODER_MAX_BATCH_SIZE`, or give the service the
    memory that decoding [takes](limits.md#memory).
"""


def _read_causes() -> dict[str, tuple[str, str]]:
    causes: dict[str, tuple[str, str]] = {}
    for entry in re.split(r"\n(?=\w)", _CAUSES.strip()):
        code, text = " ".join(entry.split()).split(": ", 1)
        cause, remedy = text.split(" => ")
        causes[code] = (cause, remedy)
    return causes


CAUSES = _read_causes()


def write_catalogue() -> str:
    """Returns the page."""
    lines = [_HEAD]
    for base, heading in _FAMILIES:
        lines += [f"## {heading}\n", *_write_rows(list_coded(base)), ""]
    lines += ["## Anything else\n", *_write_rows([ServiceError]), "", _FOOT]
    return "\n".join(lines).rstrip() + "\n"


def _write_rows(found: Iterable[type[ServiceError]]) -> Iterator[str]:
    rows = []
    for error in sorted(found, key=lambda error: (error.status, error.code)):
        cause, remedy = CAUSES[error.code]
        retry = "" if error.retry_after_seconds is None else ", retry"
        rows.append((f"`{error.code}`", f"{error.status}{retry}", error.title, cause, remedy))
    return write_table(("code", "status", "title", "cause", "remedy"), rows)


if __name__ == "__main__":
    sys.stdout.write(write_catalogue())
