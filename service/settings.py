"""Every setting of the service, from keyword arguments or else `ML_DECODER_*` variables."""

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from service.bundle.card import Device, RunPrecision
from service.errors import StartError, find_close
from service.fields import LanguageTag

MIB = 1024 * 1024
# Variables with our prefix that the client, Compose and nginx read.
_OTHER_VARIABLES = re.compile(
    r"ML_DECODER_(API_KEY|LABEL_SERVERS|LISTEN|MEMORY|PUBLISH|SERVERS)"
    # Kubernetes sets these for a Service named ml-decoder.
    r"|ML_DECODER_(\w+_)?(SERVICE_(HOST|PORT\w*)|PORT_\d+_\w+)"
)
SERVICE_LINK = re.compile(r"(tcp|udp|sctp)://")  # in ML_DECODER_PORT for the same Service
# Must not be empty: an empty variable counts as unset, which would open the service to everyone.
_KEYS = ("PREDICT_KEYS", "ADMIN_KEYS")

_DEFAULT_BUNDLE = Path("bundles/ml-decoder-lite0")

logger = logging.getLogger(__name__)


def expand_home(path: str | os.PathLike[str]) -> Path:
    """Expands a leading `~` or `~user`, as shells do except after `--flag=` and in env files.

    Raises `StartError` for `~` without HOME and without an entry of the user in /etc/passwd.
    """
    # `Path.expanduser` fails on an unknown user; this leaves the name as it is.
    expanded = Path(os.path.expanduser(path))
    if expanded.parts[:1] == ("~",):
        raise StartError(f"this user has no home folder for {path}: set HOME, or give a full path")
    return expanded


def find_default_bundle() -> Path:
    """Returns the default bundle in the current folder, or else in the checkout of this package."""
    places = (_DEFAULT_BUNDLE, Path(__file__).parents[1] / _DEFAULT_BUNDLE)
    return next((place for place in places if place.exists()), _DEFAULT_BUNDLE)


def clean(text: str) -> str:
    """Removes white space at the ends, and the quotes of an env file whose reader keeps them."""
    text = text.strip()
    return text[1:-1].strip() if re.fullmatch(r"""(["'])(?:(?!\1).)*\1""", text) else text


HomePath = Annotated[Path, AfterValidator(expand_home)]


class Settings(BaseSettings):
    """Settings of one service process; the docstring under a field is its help text."""

    model_config = SettingsConfigDict(
        env_prefix="ML_DECODER_",
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )

    bundle: HomePath = Field(default_factory=find_default_bundle)
    """Folder of the model bundle (default bundles/ml-decoder-lite0 in the current folder, else in
    the installed checkout)."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 = all IPv4 interfaces, :: = all IPv6 and IPv4 interfaces
    (default 127.0.0.1)."""

    port: int = Field(default=8000, ge=0, le=65535)
    """TCP port to listen on; 0 = a free one (default 8000)."""

    workers: Annotated[int, Field(ge=1, le=256)] | Literal["auto"] = "auto"
    """Processes of `ml-decoder serve`; auto = one for each three cores on a CPU, one for each
    two on a GPU, fewer if memory is short; more than 1 needs Linux (default auto)."""

    device: Literal["auto", Device] = "auto"
    """Device of the model: cpu, openvino (the CPU with OpenVINO's kernels; extra
    openvino), cuda (extra gpu), tensorrt (TensorRT 10 and the extra gpu), or auto = cuda if it
    works, else cpu. Another device that does not work stops the start (default auto)."""

    cuda_options: str | None = None
    """Options of ONNX Runtime's CUDA provider, separated by commas, such as
    prefer_nhwc=1,use_tf32=1 (default none)."""

    root_path: str | None = None
    """Path below which a proxy publishes the service, such as /tags. X-Forwarded-Prefix of a
    trusted proxy takes precedence (default none)."""

    model_alias: str | None = Field(default=None, pattern=r"^[^/]{1,200}$")
    """Second name of the model under /v2, such as that of a KServe InferenceService (default none:
    only the bundle's name)."""

    precision: Literal["auto", RunPrecision] = "auto"
    """Variant of the model: fp32, fp16, int8, bf16 (fp32 with bfloat16 products; openvino only), or
    auto = the bundle's choice, but fp32 for int8 without VNNI, and bf16 for fp32 on openvino if the
    processor supports it (default auto)."""

    screen: bool = True
    """Whether to use the bundle's screen, if it has one: only labels that may be in the answer are
    scored; true or false (default true)."""

    label_store: str | None = Field(default=None, repr=False)
    """Store of registered label sets: a SQLite file, postgresql://USER:PASSWORD@HOST/DATABASE with
    @ / # : % of user and password percent-encoded (@ is %40), or memory = until the service ends
    (default ~/.local/state/ml-decoder/labels.db, XDG_STATE_HOME respected)."""

    label_sets: HomePath | None = None
    """Folder of label sets to load at the start and on SIGHUP, one .json or .npz file each (default
    none)."""

    default_label_set: str | None = None
    """Label sets of requests that name none, separated by commas; those of users come before the
    trained labels and the bundle's sets. A missing set only logs a warning (default trained
    and the bundle's sets; for /v2 trained alone, or the first set if nothing is trained)."""

    lang: LanguageTag | None = None
    """Language of translations (BCP 47), such as de, in answers to requests that name none; label
    sets without it answer without translations (default none)."""

    label_poll_seconds: float = Field(default=0.5, ge=0.01, le=60.0)
    """Seconds between polls of the label store for changes by other processes (default 0.5)."""

    max_label_sets: int = Field(default=1000, ge=1)
    """Most label sets in the label store (default 1000)."""

    max_labels: int = Field(default=200_000, ge=1)
    """Most labels in the label store, all sets together (default 200000)."""

    max_labels_per_set: int = Field(default=50_000, ge=1)
    """Most labels in one label set of the store or the folder (default 50000)."""

    max_candidate_labels: int = Field(default=1000, ge=1)
    """Most candidate labels in one request (default 1000)."""

    candidate_cache_size: int = Field(default=10_000, ge=0)
    """Candidate labels whose encodings are cached (default 10000)."""

    max_batch_size: int = Field(default=0, ge=0, le=256)
    """Most images in one run of the model; 0 = 4 on a CPU, 16 on a GPU (default 0)."""

    queue_size: int = Field(default=64, ge=1)
    """Most images that wait for a worker, or are decoded or drawn outside it. More are refused at
    once (default 64)."""

    max_wait_ms: float = Field(default=0.0, ge=0.0, le=1000.0)
    """Milliseconds that an image may wait for its batch to fill; 0 = until a worker is free
    (default 0)."""

    deadline_ms: float = Field(default=30_000.0, gt=0.0, allow_inf_nan=False)
    """Milliseconds after which an unanswered request is dropped (default 30000)."""

    intra_op_threads: int = Field(default=0, ge=0, le=1024)
    """CPU threads that run the model; 0 = one for each core of the worker (default 0)."""

    decode_threads: int = Field(default=0, ge=0, le=1024)
    """CPU threads that decode images outside the workers: all images on a GPU, large or unusual
    ones on a CPU; 0 = one for each core of the worker, for a GPU 4 to 8 (default 0)."""

    max_body_bytes: int = Field(default=20 * MIB, ge=1)
    """Most bytes in the body of a request (default 20971520 = 20 MiB)."""

    max_held_bytes: int = Field(default=1024 * MIB, ge=1)
    """Most bytes of request bodies, fetched images and long answers in memory, all requests
    together; workers divide it. More are refused at once. Must be at least max_body_bytes (default
    1073741824 = 1 GiB)."""

    max_pixels: int = Field(default=50_000_000, ge=1, le=178_000_000)  # Pillow's own limit
    """Most pixels (width x height) in an image (default 50000000)."""

    max_decoding_pixels: int = Field(default=64_000_000, ge=1)
    """Most pixels of images of more than 12 Mi pixels (12582912) that are decoded at the same time,
    of JPEGs a quarter; the others wait. Workers divide it. A pixel takes up to 25 bytes (default
    64000000)."""

    predict_keys: SecretStr | None = None
    """Keys that permit predictions, separated by commas, or @FILE with one key a line, which is
    read again when it changes. NAME:KEY names a key in the log; lines that begin with # are
    comments (default none: anyone may predict)."""

    admin_keys: SecretStr | None = None
    """Keys that permit predictions and changes of label sets, separated by commas, or @FILE
    (default none: with predict keys, label sets cannot be changed; without, anyone may)."""

    rate_limit: str | None = None
    """Most requests of one key or its name, or of one address without a key, such as 100/minute.
    More are refused. Each photo of a request counts, a large one once for each started 12 Mi pixels
    (default none)."""

    cors_origins: str | None = None
    """Origins of other sites whose pages may send requests, separated by commas, or * = all
    (default none)."""

    allowed_hosts: str | None = None
    """Host names under which browsers may use the service without a key, such as tags.example.org
    or *.example.org, separated by commas, or * = all. IP addresses and localhost need no entry
    (default none)."""

    dialects: str = "all"
    """Other programs whose requests are answered, separated by commas: open-inference, openai,
    photoprism, wd14, or all (default all)."""

    url_input: bool = False
    """Whether `/predict` accepts the URL of an image, true or false: https on the public internet
    only (default false)."""

    url_timeout_seconds: float = Field(default=10.0, gt=0.0, allow_inf_nan=False)
    """Seconds to fetch an image by its URL, redirects included (default 10)."""

    drain_seconds: float = Field(default=20.0, ge=0.0, allow_inf_nan=False)
    """Seconds that running requests have to finish when the service stops (default 20)."""

    header_timeout_seconds: float = Field(default=10.0, gt=0.0, allow_inf_nan=False)
    """Seconds that a client has to send the headers of a request (default 10)."""

    body_timeout_seconds: float = Field(default=30.0, gt=0.0, allow_inf_nan=False)
    """Seconds that a client has to send the body of a request; one that reads its answer at less
    than 16 KiB a second for so long is disconnected (default 30)."""

    keep_alive_seconds: float = Field(default=75.0, ge=0.0, allow_inf_nan=False)
    """Seconds that an idle connection stays open (default 75)."""

    max_connections: int = Field(default=0, ge=0)
    """Most open connections of a process; above, the longest idle ones are closed. 0 = 10000, or
    three quarters of the files that the process may open if that is less (default 0)."""

    max_connections_per_address: int | None = Field(default=None, ge=1)
    """Most open connections of one address to a process; not behind a proxy (default none)."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe log lines: debug, info, warning, error (default info)."""

    log_format: Literal["text", "json"] = "text"
    """Format of log lines: text for people, json for programs (default text)."""

    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """TCP port of the metrics, to keep them private; 0 = a free one (default none: /metrics on the
    service's port)."""

    traces: Literal["off", "otlp"] = "off"
    """Destination of traces: off, or otlp = an OpenTelemetry collector, configured by the standard
    OTEL_* variables; needs the extra otel (default off)."""

    @model_validator(mode="before")
    @classmethod
    def _clean(cls, given: dict[str, Any]) -> dict[str, Any]:
        # Empty keys are refused later. Other empty values are unset, as empty variables are.
        texts = {name: clean(text) for name, text in given.items() if isinstance(text, str)}
        unset = {name for name, text in texts.items() if not text and name.upper() not in _KEYS}
        return {name: value for name, value in {**given, **texts}.items() if name not in unset}


def check_variables(environment: Mapping[str, str] = os.environ) -> None:
    """Logs unknown `ML_DECODER_*` variables with the closest setting.

    Raises StartError if a variable with KEY in its name is unknown, or a variable of keys is empty:
    without keys the service would be open to everyone.
    """
    prefix = str(Settings.model_config["env_prefix"])
    known = [name.upper() for name in Settings.model_fields]
    for name in sorted(environment):
        variable = name.upper()
        setting = variable.removeprefix(prefix)
        if setting == variable:
            continue
        if setting in _KEYS and not clean(environment[name]):
            raise StartError(f"{name} is empty: set a key, or unset the variable")
        is_known = setting in known or _OTHER_VARIABLES.fullmatch(variable)
        if is_known or SERVICE_LINK.match(environment[name]):
            continue
        close = find_close(setting, known)
        hint = "" if close is None else f"; did you mean {prefix}{close}?"
        message = f"{name} is not a setting{hint}"
        if "KEY" in setting:
            raise StartError(message)
        logger.warning("%s", message)
