"""What can go wrong between a request and its answer, one class for each kind.

    bytes --queue--> batch --decode--> images --run--> logits --score--> labels
           BusyError        ImageError      InferenceFailed   QuestionError

    ServiceError
    |-- ImageError             the client's picture
    |   |-- InvalidImage       empty, junk, truncated
    |   |-- UnsupportedImage   a known format that is not served
    |   `-- TooManyPixels      over the pixel limit
    |-- QuestionError          the client's question
    |   |-- UnknownLabel       names that are not labels
    |   |-- ConflictingLabels  names both included and excluded
    |   |-- UnknownLabelSet    names that are not label sets
    |   `-- NoMaps             maps of labels that the bundle has none for
    |-- LabelSetError          the client's label set
    |   |-- InvalidLabelSet    a set that nobody could use
    |   |-- TextNotEncodable   names without embeddings, and the bundle encodes no text
    |   |-- OtherEmbeddings    embeddings of another space than the bundle's
    |   |-- NoOpenHead         the bundle scores its trained labels only
    |   |-- LabelSetNotFound   no set of that name
    |   |-- LabelSetExists     another set has the name
    |   |-- LabelSetReadOnly   the set came with the bundle or from a folder
    |   |-- LabelSetChanged    it is not the version that the client has seen
    |   |-- TooManyLabelSets   no room for more sets or labels
    |   `-- VersionNotReached  the store has not seen that version
    |-- StoreError             the store of label sets
    |   |-- StoreUnavailable   away or locked; what is loaded goes on
    |   |   `-- StoreIncompatible  a file or tables that are not this service's
    |   `-- StoreFull          no space left on its disk
    |-- BusyError              try again later
    |   |-- QueueFull          refused at once
    |   `-- DeadlineExceeded   waited too long; the work was dropped
    |-- UnavailableError       not taking requests
    |   |-- NotReady           still loading, or broken
    |   `-- Draining           stopping
    |-- InferenceFailed        the engine failed on a batch
    |   `-- OutOfMemory        it ran out of memory
    |-- ServiceBroken          the service broke while it ran and has to be started again
    `-- StartError             the service cannot start as configured

Messages are for logs. What clients read is fixed wording, chosen by class in
`http/problems.py`; what they may read of an error is in its attributes. A bad bundle is a
`BundleError`, which whoever exports may meet without a service.
"""

from __future__ import annotations

from typing import TypeVar


class ServiceError(Exception):
    """Base of every error that the service raises on purpose."""


class ImageError(ServiceError):
    """The picture cannot be used.

    Attributes:
        place: which one it is, where one of several fails them all: `Photo 2 of 3`.
    """

    place: str | None = None


class InvalidImage(ImageError):
    """The bytes are no picture, or a damaged one."""


class UnsupportedImage(ImageError):
    """The bytes are in a known format that the service does not read."""


class TooManyPixels(ImageError):
    """The picture has more pixels than the service accepts.

    Attributes:
        limit: most pixels, width x height.
    """

    def __init__(self, limit: int) -> None:
        """Keeps the limit."""
        super().__init__(f"over {limit} pixels")
        self.limit = limit


class QuestionError(ServiceError):
    """The question does not fit the model's labels.

    Attributes:
        names: the names at fault, in the order in which they were given.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        """Keeps the names at fault."""
        super().__init__(", ".join(names))
        self.names = names


class UnknownLabel(QuestionError):
    """The question names labels that the model does not have."""


class ConflictingLabels(QuestionError):
    """The question both includes and excludes the same labels."""


class UnknownLabelSet(QuestionError):
    """The question names label sets that there are not, or none, and its default is not there.

    Attributes:
        by_default: whether the names are the service's, not the question's.
    """

    def __init__(self, names: tuple[str, ...], *, by_default: bool = False) -> None:
        """Keeps the names at fault, and whose they are."""
        super().__init__(names)
        self.by_default = by_default


class NoMaps(QuestionError):
    """The question asks for maps, and the bundle has none for labels of these sets."""


class LabelSetError(ServiceError):
    """A label set cannot be registered, read, replaced or deleted as asked."""


class InvalidLabelSet(LabelSetError):
    """A label set that could be used with no bundle.

    Attributes:
        reason: fixed wording around numbers of ours and names of the client's.
    """

    def __init__(self, reason: str) -> None:
        """Keeps the reason."""
        super().__init__(reason)
        self.reason = reason


class TextNotEncodable(LabelSetError):
    """A label has no embedding, and the bundle has no text encoder."""


class OtherEmbeddings(LabelSetError):
    """The embeddings belong to another space than the bundle's."""


class NoOpenHead(LabelSetError):
    """The bundle scores its trained labels only."""


class LabelSetNotFound(LabelSetError):
    """There is no label set of that name."""


class LabelSetExists(LabelSetError):
    """Another label set already has the name."""


class LabelSetReadOnly(LabelSetError):
    """The label set came with the bundle or from a folder."""


class LabelSetChanged(LabelSetError):
    """The label set is not in the version that the client demands."""


class TooManyLabelSets(LabelSetError):
    """The store holds as many sets or labels as it may."""


class VersionNotReached(LabelSetError):
    """The label sets have not reached the version that the client demands."""


class StoreError(ServiceError):
    """The store of label sets did not do what was asked; nothing of it was kept."""


class StoreUnavailable(StoreError):
    """The store cannot be reached, or is locked; one line for a person, with where it is."""


class StoreIncompatible(StoreUnavailable):
    """The store's file is no database, or its tables are of another version."""


class StoreFull(StoreError):
    """The store's disk has no space left."""


class BusyError(ServiceError):
    """The service is healthy but has too much to do."""


class QueueFull(BusyError):
    """No place in the queue; refused at once.

    Attributes:
        retry_after_seconds: when there may be one; None where nobody knows.
    """

    retry_after_seconds: float | None = None


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


class ServiceBroken(ServiceError):
    """The service broke while it ran; the message is one line for a person."""


class StartError(ServiceError):
    """The service cannot start as configured; the message is one line for a person."""


class BundleError(Exception):
    """A bundle is absent, damaged or inconsistent; the message is one line for a person."""


ErrorT = TypeVar("ErrorT", bound=Exception)


def without_frames(error: ErrorT) -> ErrorT:
    """Returns an error without traceback, cause and context: their frames keep the photos alive."""
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error
