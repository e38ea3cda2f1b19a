from pathlib import Path

import numpy as np

from export.calibration.open_labels import embed_label_set
from export.sources.open import read_label_set
from service.labels.definition import Definition
from service.labels.examples import make_lesson
from service.labels.files import pack_label_set, parse_label_set
from tests.support.label_store import make_examples
from tests.support.tiny_bundle import EMBEDDING_WIDTH, SPACE, WIDTH


def test_label_set_of_a_service_keeps_its_lessons(tmp_path: Path) -> None:
    lesson = make_lesson(WIDTH).add(make_examples(2, width=WIDTH))
    lessons, nothing = {"our mug": lesson}, (None, None)
    taught = Definition("mugs", ("mug", "our mug"), nothing, nothing, lessons=lessons, encoder="e")
    blank = np.zeros((2, EMBEDDING_WIDTH), np.float32)
    (tmp_path / "mugs.npz").write_bytes(pack_label_set(taught, blank))
    found = read_label_set(tmp_path / "mugs.npz", SPACE)
    embedded = embed_label_set(found, SPACE, lambda texts: np.ones((len(texts), EMBEDDING_WIDTH)))
    again = parse_label_set(pack_label_set(embedded), ".npz", "mugs")
    assert (again.names, again.encoder, again.given) == (taught.names, "e", (0, 1))
    assert again.lessons["our mug"].to_bytes() == lesson.to_bytes()
