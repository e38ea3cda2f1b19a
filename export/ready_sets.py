"""Ready label sets: every label gets its embedding, so that a service that starts encodes no text.

In: a calibrated `LabelSetRecord` and the text graph. Out: a `Definition`. Next: `build.py`, which
puts it into a bundle.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx

from export.graphs import FloatArray, open_session
from export.open_source import OpenSource
from service.labels.definition import Definition, LabelSetRecord, define_label_set


def embed_label_set(
    opened: OpenSource, graph: onnx.ModelProto, record: LabelSetRecord
) -> Definition:
    """Gives every label of a set the embedding that the service would compute of its text.

    Args:
        opened: the text encoder and the head that takes its embeddings.
        graph: the text encoder as the service runs it.
        record: the set.

    Raises:
        service.errors.InvalidLabelSet: a name stands twice, or embeddings differ in width.
    """
    definition, space = define_label_set(record), opened.describe().embedding_space
    session = open_session(graph)

    def embed(text: str) -> FloatArray:
        ids, mask = (tokens.numpy() for tokens in opened.text.tokenize([text]))
        feeds = {"input_ids": ids, "attention_mask": mask}
        return np.asarray(session.run(["embeddings"], feeds)[0][0], np.float32)

    given = dict(zip(definition.given, definition.embeddings, strict=True))
    texts = definition.texts(space)
    rows = [given[i] if i in given else embed(text) for i, text in enumerate(texts)]
    return replace(
        definition,
        given=tuple(range(len(rows))),
        embeddings=np.stack(rows),
        embedding_space=space.fingerprint,
    )
