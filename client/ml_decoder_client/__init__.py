"""Python client of ml-decoder-serve, sync and async; imports nothing of the service.

with Client("http://localhost:8000") as client:
    for label in client.predict("photo.jpg", top_k=3).labels:
        print(label.label, label.score)
"""

from ml_decoder_client.answers import (
    Answer,
    Calibration,
    ClientError,
    Embedding,
    Embeddings,
    ExampleCounts,
    Info,
    LabelCalibration,
    LabelExamples,
    LabelSet,
    LabelSetSummary,
    Lesson,
    NewLabel,
    OperatingPoint,
    PhotoScore,
    RegisteredLabel,
    ScoredLabel,
    Separation,
    ServiceProblem,
    ServiceUnreachable,
    UnreadableAnswer,
)
from ml_decoder_client.calls import LabelToWrite, Photo, Question
from ml_decoder_client.clients import AsyncClient, Client

__all__ = [
    "Answer",
    "AsyncClient",
    "Calibration",
    "Client",
    "ClientError",
    "Embedding",
    "Embeddings",
    "ExampleCounts",
    "Info",
    "LabelCalibration",
    "LabelExamples",
    "LabelSet",
    "LabelSetSummary",
    "LabelToWrite",
    "Lesson",
    "NewLabel",
    "OperatingPoint",
    "Photo",
    "PhotoScore",
    "Question",
    "RegisteredLabel",
    "ScoredLabel",
    "Separation",
    "ServiceProblem",
    "ServiceUnreachable",
    "UnreadableAnswer",
]
