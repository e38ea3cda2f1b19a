"""What can go wrong in an export; every message is one line for a person.

ExportError
├── UnusableCheckpointError  no backbone, no label names, wrong number of names
├── UnusablePhotosError      no such photo, not decodable, labels that are not the model's
├── TracingError             torch cannot turn the network into a graph
└── VerificationError        a graph does not compute what the torch network computes
"""

from __future__ import annotations


class ExportError(Exception):
    """An export cannot go on; nothing was written."""


class UnusableCheckpointError(ExportError):
    """The checkpoint does not hold all that a bundle needs."""


class UnusablePhotosError(ExportError):
    """The labelled photos cannot be read or do not fit the model."""


class TracingError(ExportError):
    """The network does something that torch cannot turn into an ONNX graph."""


class VerificationError(ExportError):
    """A traced graph and the torch network disagree by more than the tolerance."""
