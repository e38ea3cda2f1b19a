"""A set of the bundle or of a folder is encoded at the start, or stops it with its name."""

from __future__ import annotations

from collections.abc import AsyncIterator

import numpy as np
import pytest

from service.bundle.reader import Bundle
from service.errors import StartError
from service.labels.definition import Definition
from service.labels.encoding import Encoding, open_encoding
from service.labels.fixed_sets import FixedSet, encode_fixed_set

pytestmark = pytest.mark.anyio


@pytest.fixture
async def encoding(open_bundle: Bundle) -> AsyncIterator[Encoding]:
    encoding = open_encoding(open_bundle, threads=1, remembered=9, queue_size=9)
    assert encoding is not None
    yield encoding
    encoding.close()


def make(name: str = "pets", space: str | None = None, width: int | None = None) -> FixedSet:
    rows = 0 if width is None else 1
    definition = Definition(
        name,
        ("cat",),
        (None,),
        (0.25,),
        given=tuple(range(rows)),
        embeddings=np.ones((rows, width or 0), np.float32),
        embedding_space=space,
    )
    return FixedSet(definition, "1.0", "folder")


async def test_set_is_encoded_as_it_was_defined(encoding: Encoding) -> None:
    labels = await encode_fixed_set(make(), encoding)
    assert (labels.name, labels.version, labels.origin) == ("pets", "1.0", "folder")
    assert labels.thresholds.tolist() == [0.25]
    assert labels.queries is not None
    assert labels.queries.shape == (1, encoding.query_width)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (make("trained"), "trained: The name is reserved"),
        (make(space="0" * 64), "pets: embeddings of another space"),
        (make(width=99), "pets: An embedding needs"),
    ],
)
async def test_set_that_does_not_fit_stops_the_start(
    encoding: Encoding, entry: FixedSet, reason: str
) -> None:
    with pytest.raises(StartError, match=reason) as caught:
        await encode_fixed_set(entry, encoding)
    assert "\n" not in str(caught.value)


async def test_bundle_without_open_head_takes_no_sets() -> None:
    with pytest.raises(StartError, match="pets: the bundle has no open head"):
        await encode_fixed_set(make(), None)
