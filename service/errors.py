"""What can go wrong between a request and its answer, one class for each kind.

    bytes --decode--> image --queue--> batch --run--> logits --score--> labels
            ImageError        BusyError       InferenceFailed   QueryError

    ServiceError
    |-- ImageError             the client's picture
    |   |-- InvalidImage       empty, junk, truncated
    |   |-- UnsupportedImage   a known format that is not served
    |   `-- TooManyPixels      over the pixel limit
    |-- QueryError             the client's question
    |   |-- UnknownLabel       names that are not labels
    |   `-- ConflictingLabels  names both included and excluded
    |-- BusyError              try again later
    |   |-- QueueFull          refused at once
    |   `-- DeadlineExceeded   waited too long; the work was dropped
    |-- UnavailableError       not taking requests
    |   |-- NotReady           still loading, or broken
    |   `-- Draining           stopping
    |-- InferenceFailed        the engine failed on a batch
    |   `-- OutOfMemory        it ran out of memory
    `-- StartError             the service cannot start as configured

Messages are for logs. What clients read is fixed wording, chosen by class in
`http/problems.py`; what they may read of an error is in its attributes. A bad bundle is
`service.bundle.BundleError`.
"""

from __future__ import annotations


class ServiceError(Exception):
    """Base of every error that the service raises on purpose."""


class ImageError(ServiceError):
    """The picture cannot be used."""


class InvalidImage(ImageError):
    """The bytes are no picture, or a damaged one."""


class UnsupportedImage(ImageError):
    """The bytes are in a known format that the service does not read."""


class TooManyPixels(ImageError):
    """The picture has more pixels than the service accepts."""


class QueryError(ServiceError):
    """The query does not fit the model's labels.

    Attributes:
        names: the names at fault, in the order in which they were given.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        """Keeps the names at fault."""
        super().__init__(", ".join(names))
        self.names = names


class UnknownLabel(QueryError):
    """The query names labels that the model does not have."""


class ConflictingLabels(QueryError):
    """The query both includes and excludes the same labels."""


class BusyError(ServiceError):
    """The service is healthy but has too much to do."""


class QueueFull(BusyError):
    """No place in the queue; refused at once."""


class DeadlineExceeded(BusyError):
    """The request waited longer than its deadline; its work was dropped."""


class UnavailableError(ServiceError):
    """The service takes no requests."""


class NotReady(UnavailableError):
    """The service is still loading, or it has failed."""


class Draining(UnavailableError):
    """The service is stopping: it finishes what it has and takes nothing new."""


class InferenceFailed(ServiceError):
    """The engine failed on a batch."""


class OutOfMemory(InferenceFailed):
    """The engine ran out of memory on a batch."""


class StartError(ServiceError):
    """The service cannot start as configured; the message is one line for a person."""
