"""Encoders of the open bundle, one for each file."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from service.bundle.reader import Bundle
from service.labels.encoders import LabelEncoders
from service.pipeline.loading import open_encoders
from service.settings import Settings


@pytest.fixture(scope="module")
def encoders(open_bundle: Bundle) -> Iterator[LabelEncoders]:
    with closing(open_encoders(Settings(bundle=open_bundle.path), open_bundle)) as encoders:
        yield encoders
