"""Client: a running service from Python, typed; needs httpx and pydantic only.

    from ml_decoder_client import Client

    with Client("http://localhost:8000") as client:
        for label in client.predict("photo.jpg", top_k=3).labels:
            print(label.label, label.score)

In: photos and label sets. Out: the service's answers as objects. `calls.py` says what is sent,
`answers.py` what comes back, `blocking.py` and `awaiting.py` send it through what `connection.py`
makes, and again when `tries.py` says so. Nothing here imports the rest of the service.
"""

from ml_decoder_client.answers import (
    Answer,
    Info,
    LabelSet,
    LabelSetSummary,
    NewLabel,
    RegisteredLabel,
    ScoredLabel,
)
from ml_decoder_client.awaiting import AsyncClient
from ml_decoder_client.blocking import Client
from ml_decoder_client.calls import LabelToWrite, Photo, Question
from ml_decoder_client.errors import (
    ClientError,
    ServiceProblem,
    ServiceUnreachable,
    UnreadableAnswer,
)

__all__ = [
    "Answer",
    "AsyncClient",
    "Client",
    "ClientError",
    "Info",
    "LabelSet",
    "LabelSetSummary",
    "LabelToWrite",
    "NewLabel",
    "Photo",
    "Question",
    "RegisteredLabel",
    "ScoredLabel",
    "ServiceProblem",
    "ServiceUnreachable",
    "UnreadableAnswer",
]
