from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from export.accuracy import measure_map
from tests.support.photos import encode_picture
from tests.support.serving import labels_of, send_image, serve_app

ROOT = Path(__file__).parents[2]


def test_softmax_ranks_the_photos_by_its_scores() -> None:
    logits = np.array([[3, 5], [2, 0], [1, 900]], np.float32)
    targets = np.array([[0, 1], [1, 0], [0, 1]])
    assert measure_map(logits, targets, "softmax") == pytest.approx(100.0)
    assert measure_map(logits, targets, "sigmoid") < 100.0


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_default_bundle_finds_nothing_on_a_blank_photo(precision: str) -> None:
    blank = [Image.new("RGB", (640, 480), name) for name in ("white", "grey", "black")]
    photos = [encode_picture(image, kind) for image in blank for kind in ("PNG", "JPEG")]
    photos.append(encode_picture(Image.new("RGBA", (9, 700), (0, 0, 0, 0))))
    photos += [encode_picture(Image.new("L", (100, 100), grey)) for grey in range(8, 256, 16)]
    with serve_app(ROOT / "bundles/ml-decoder-lite0", precision=precision) as client:
        for photo in photos:
            assert labels_of(send_image(client, photo)) == []  # of all its sets
        assert labels_of(send_image(client, (ROOT / "docs/photos/chelsea.jpg").read_bytes()))
