"""Ready label sets: every label gets its embedding, so that a service that starts encodes no text.

In: a calibrated `LabelSetRecord` and a `TextEmbedder`. Out: a `Definition`. Next: `build.py`, which
puts it into a bundle.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from export.graphs.text import TextEmbedder
from service.bundle.card import EmbeddingSpace
from service.labels.definition import Definition, LabelSetRecord, check_fit, define_label_set


def embed_label_set(
    record: LabelSetRecord, space: EmbeddingSpace, texts: TextEmbedder
) -> Definition:
    """Gives every label of a set the embedding that the service would compute of its text.

    Args:
        record: the set, as `read_open_source` has checked it.
        space: of the head that takes the embeddings.
        texts: embeds as the service does.

    Raises:
        InvalidLabelSet: an embedding is not finite, or its length is out of bounds.
    """
    definition = define_label_set(record)
    given = dict(zip(definition.given, definition.embeddings, strict=True))
    missing = [i for i in range(len(definition.names)) if i not in given]
    prompts = definition.texts(space)
    given |= zip(missing, texts.embed([prompts[i] for i in missing]), strict=True)
    embedded = replace(
        definition,
        given=tuple(range(len(given))),
        embeddings=np.stack([given[i] for i in range(len(given))]),
        embedding_space=space.fingerprint,
    )
    check_fit(embedded, space, encodes_text=True)
    return embedded
