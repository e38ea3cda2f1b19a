"""Python client of ml-decoder-serve, sync and async; imports nothing of the service.

with Client("http://localhost:8000") as client:
    for label in client.predict("photo.jpg", top_k=3).labels:
        print(label.label, label.score)
"""

from ml_decoder_client.answers import Answer as Answer
from ml_decoder_client.answers import Calibration as Calibration
from ml_decoder_client.answers import ClientError as ClientError
from ml_decoder_client.answers import Embedding as Embedding
from ml_decoder_client.answers import Embeddings as Embeddings
from ml_decoder_client.answers import ExampleCounts as ExampleCounts
from ml_decoder_client.answers import Info as Info
from ml_decoder_client.answers import LabelCalibration as LabelCalibration
from ml_decoder_client.answers import LabelExamples as LabelExamples
from ml_decoder_client.answers import LabelFit as LabelFit
from ml_decoder_client.answers import LabelSet as LabelSet
from ml_decoder_client.answers import LabelSetSummary as LabelSetSummary
from ml_decoder_client.answers import LearntLabel as LearntLabel
from ml_decoder_client.answers import NewLabel as NewLabel
from ml_decoder_client.answers import OperatingPoint as OperatingPoint
from ml_decoder_client.answers import PhotoScore as PhotoScore
from ml_decoder_client.answers import RegisteredLabel as RegisteredLabel
from ml_decoder_client.answers import ScoredLabel as ScoredLabel
from ml_decoder_client.answers import Separation as Separation
from ml_decoder_client.answers import ServiceProblem as ServiceProblem
from ml_decoder_client.answers import ServiceUnreachable as ServiceUnreachable
from ml_decoder_client.answers import UnreadableAnswer as UnreadableAnswer
from ml_decoder_client.calls import LabelToWrite as LabelToWrite
from ml_decoder_client.calls import Photo as Photo
from ml_decoder_client.calls import Question as Question
from ml_decoder_client.clients import AsyncClient as AsyncClient
from ml_decoder_client.clients import Client as Client

__all__ = [name for name in dir() if name[0].isupper()]  # as `help` shows them
