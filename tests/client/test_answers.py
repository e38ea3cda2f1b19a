"""The client's models have the fields of the service's answers, and its question the parameters."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from ml_decoder_client import answers
from ml_decoder_client.calls import Question
from service.http.requests.parameters import Parameters
from service.http.responses import schemas
from service.labels.definition import OpenLabel

# Attention maps may be served by a newer service than this one.
NEWER = {"map", "overlay", "explain"}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (answers.NameAndVersion, schemas.NameAndVersion),
        (answers.ImageSize, schemas.ImageSize),
        (answers.ScoredLabel, schemas.ScoredLabelAnswer),
        (answers.Timings, schemas.TimingsAnswer),
        (answers.Answer, schemas.PredictAnswer),
        (answers.LabelSetSummary, schemas.LabelSetSummary),
        (answers.LabelSetList, schemas.LabelSetsAnswer),
        (answers.RegisteredLabel, schemas.RegisteredLabel),
        (answers.LabelSet, schemas.LabelSetAnswer),
        (answers.Info, schemas.InfoAnswer),
        (answers.NewLabel, OpenLabel),
    ],
)
def test_fields_are_those_of_the_service(ours: type[BaseModel], theirs: type[BaseModel]) -> None:
    assert set(ours.model_fields) - NEWER == set(theirs.model_fields) - NEWER


def test_question_has_every_parameter() -> None:
    assert set(Question.__annotations__) - NEWER == set(Parameters.model_fields) - NEWER
