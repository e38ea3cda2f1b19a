"""Every setting of the service, in one place.

In: environment variables (`ML_DECODER_` + the name in capitals) and keyword arguments,
which win. Out: a frozen `Settings`. Next: `graphs.py`, which opens what is asked for.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from service.bundle.card import Device, RunPrecision
from service.errors import StartError

MIB = 1024 * 1024
# Not settings, but ours: of the command line's client, Compose and nginx.
_OTHER_VARIABLES = re.compile(
    r"ML_DECODER_(API_KEY|LABEL_SERVERS|LISTEN|PUBLISH|SERVERS)"
    # What Kubernetes sets of a Service that is named ml-decoder.
    r"|ML_DECODER_(\w+_)?(SERVICE_(HOST|PORT\w*)|PORT_\d+_\w+)"
)

# An empty variable counts as none; here that would open the service to everyone.
_KEYS = ("PREDICT_KEYS", "ADMIN_KEYS")

_log = logging.getLogger(__name__)


def expand_home(path: str | os.PathLike[str]) -> Path:
    """Returns a path with the home folder in place of a leading `~` or `~user`.

    Shells do that for a word that begins so, but not behind `--flag=` nor in a file of variables.
    """
    # Unlike `Path.expanduser` it leaves the name of an unknown user as it is.
    return Path(os.path.expanduser(path))


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

    bundle: HomePath = Path("bundles/ml-decoder-lite0")
    """Folder of the model bundle to serve (default bundles/ml-decoder-lite0)."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 is every interface, :: every one of IPv6 and of IPv4 (default
    127.0.0.1)."""

    port: int = Field(default=8000, ge=0, le=65535)
    """TCP port to listen on; 0 picks a free one (default 8000)."""

    device: Literal["auto", Device] = "auto"
    """Where the model runs: cpu, openvino (the CPU with OpenVINO's kernels; needs the extra
    openvino), cuda, tensorrt (needs TensorRT 10 beside the extra gpu), or auto = cuda if it works,
    else cpu; any other device that is not there stops the start (default auto)."""

    precision: Literal["auto", RunPrecision] = "auto"
    """Variant of the model: fp32, fp16, int8, bf16 (fp32 with products of bfloat16; openvino
    alone), or auto = the bundle's choice for the device, with openvino bf16 in place of fp32 where
    the processor has it (default auto)."""

    label_store: str | None = None
    """Where registered label sets are kept: a SQLite file, a postgresql:// URL, or memory =
    until the process ends (default ~/.local/state/ml-decoder/labels.db, XDG_STATE_HOME
    respected)."""

    label_sets: HomePath | None = None
    """Folder with label sets to load at the start, one .json or .npz file each (default none)."""

    default_label_set: str | None = None
    """Label set of requests that name none, or several with commas between (default trained,
    or the bundle's first where the model has no trained labels). One that is not there only
    warns: it may be registered later."""

    label_poll_seconds: float = Field(default=0.5, ge=0.01, le=60.0)
    """Seconds between two looks at the label store for what other processes wrote (default
    0.5)."""

    max_label_sets: int = Field(default=1000, ge=1)
    """Most label sets in the label store (default 1000)."""

    max_labels: int = Field(default=200_000, ge=1)
    """Most labels in the label store, all sets together (default 200000)."""

    max_labels_per_set: int = Field(default=50_000, ge=1)
    """Most labels in one registered label set (default 50000)."""

    max_candidate_labels: int = Field(default=1000, ge=1)
    """Most candidate labels in one request (default 1000)."""

    candidate_cache_size: int = Field(default=10_000, ge=0)
    """Candidate labels whose encoding is remembered (default 10000)."""

    max_batch_size: int = Field(default=0, ge=0, le=256)
    """Most images in one run of the model; 0 = 4 on a CPU, 16 on a GPU (default 0)."""

    queue_size: int = Field(default=64, ge=1)
    """Most images that may wait, decoding included; more are refused at once (default 64)."""

    max_wait_ms: float = Field(default=0.0, ge=0.0, le=1000.0)
    """Milliseconds that an image may wait for others to fill its batch; 0 = it leaves as
    soon as the model is free (default 0)."""

    deadline_ms: float = Field(default=30_000.0, gt=0.0)
    """Milliseconds after which a request that has no answer is dropped (default 30000)."""

    intra_op_threads: int = Field(default=0, ge=0, le=1024)
    """CPU threads that compute; 0 = one for each core (default 0)."""

    decode_threads: int = Field(default=0, ge=0, le=1024)
    """CPU threads that decode images beside the model: every image where a GPU runs it, large or
    unusual ones where the CPU does; 0 = one for each core (default 0)."""

    max_body_bytes: int = Field(default=20 * MIB, ge=1)
    """Most bytes in the body of a request (default 20971520 = 20 MiB)."""

    max_held_bytes: int = Field(default=1024 * MIB, ge=1)
    """Most bytes of request bodies in memory, all requests together, fetched images included; what
    does not fit is refused at once; at least max_body_bytes (default 1073741824 = 1 GiB)."""

    max_pixels: int = Field(default=50_000_000, ge=1, le=178_000_000)  # Pillow's own limit
    """Most pixels (width x height) in an image (default 50000000)."""

    predict_keys: SecretStr | None = None
    """Keys that may predict, with commas between, or @FILE with one a line (default none:
    anyone may)."""

    admin_keys: SecretStr | None = None
    """Keys that may change label sets and predict, given as the others (default none: nobody may
    change label sets where there are predict keys, anyone where there are none)."""

    rate_limit: str | None = None
    """Most requests of one key, or of one address where no key is sent, such as 100/minute;
    more are refused (default none)."""

    cors_origins: str | None = None
    """Origins of other sites whose pages may ask, with commas between, or * for all (default
    none)."""

    url_input: bool = False
    """Whether `/predict` takes the URL of an image, true or false: https on the public internet
    alone (default false)."""

    url_timeout_seconds: float = Field(default=10.0, gt=0.0)
    """Seconds that fetching an image by its URL may take, redirects included (default 10)."""

    drain_seconds: float = Field(default=20.0, ge=0.0, allow_inf_nan=False)
    """Seconds that running requests get to finish when the service stops (default 20)."""

    header_timeout_seconds: float = Field(default=10.0, gt=0.0)
    """Seconds that a client may take to send the headers of a request (default 10)."""

    body_timeout_seconds: float = Field(default=30.0, gt=0.0)
    """Seconds that a client may take to send the body of a request, or take nothing of its answer
    (default 30)."""

    keep_alive_seconds: float = Field(default=75.0, ge=0.0, allow_inf_nan=False)
    """Seconds that an idle connection is kept open (default 75)."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe log lines that are written: debug, info, warning, error (default info)."""

    log_format: Literal["text", "json"] = "text"
    """Form of a log line: text for people, json for programs (default text)."""

    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """TCP port for the metrics alone, so that nobody else sees them; 0 picks a free one (default
    none: /metrics on the service's own port)."""

    traces: Literal["off", "otlp"] = "off"
    """Where traces go: off, or otlp = an OpenTelemetry collector, as the standard OTEL_* variables
    say; needs the extra otel (default off)."""


def check_variables(environment: Mapping[str, str] = os.environ) -> None:
    """Warns of variables that begin like settings and are none, with the name that may be meant.

    Raises:
        StartError: one speaks of keys, or is there to hold them and empty; without keys the
            service would be open to everyone.
    """
    prefix = str(Settings.model_config["env_prefix"])
    known = [name.upper() for name in Settings.model_fields]
    for name in sorted(environment):
        variable = name.upper()
        setting = variable.removeprefix(prefix)
        if setting == variable:
            continue
        if setting in _KEYS and not environment[name].strip():
            raise StartError(f"{name} is empty: it takes a key, or has to be unset")
        if setting in known or _OTHER_VARIABLES.fullmatch(variable):
            continue
        import difflib  # a start without such a variable does without it

        near = difflib.get_close_matches(setting, known, 1)
        told = f"{name} is not a setting" + "".join(
            f"; did you mean {prefix}{other}?" for other in near
        )
        if "KEY" in setting:
            raise StartError(told)
        _log.warning("%s", told)
