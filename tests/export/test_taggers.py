"""Published taggers, tiny: a photo's file gives the scores of the taggers' own code."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from export.build import ExportRequest, build_bundle
from models.checkpoints.description import Hints
from service.engine.engine import open_engine
from service.engine.heads import TRAINED_HEAD
from service.images.decode import decode_image
from tests.models.checkpoints.test_preparation import NORMALIZE, STAGES, write_tagger
from tests.service.images.test_pad import pad_by_pillow
from tests.support.photos import encode_picture, make_picture


@pytest.mark.parametrize("stages", [STAGES, None])
def test_padded_photo_has_the_scores_of_the_taggers_own_code(
    stages: list[dict[str, Any]] | None, tmp_path: Path
) -> None:
    """Animetimm says how photos are prepared; of WD taggers, which take BGR, options do."""
    spec = {key: NORMALIZE[key] for key in ("mean", "std")}
    cfg = {"input_size": [3, 64, 64], "interpolation": "bicubic", **spec}
    model = write_tagger(tmp_path / "tagger", stages, pretrained_cfg=cfg)
    hints = Hints() if stages else Hints(pad="white", channels="bgr")
    bundle = build_bundle(ExportRequest(tmp_path / "tagger", tmp_path / "bundle", hints=hints))
    picture = make_picture(5, 300, 171)
    pixels = decode_image(encode_picture(picture), bundle.card.input, 10**6).pixels
    engine = open_engine(bundle, device="cpu", precision="fp32")
    result = next(iter(engine.run(pixels[None], [[TRAINED_HEAD]])))

    squared = torch.from_numpy(pad_by_pillow(picture, bundle.card.input).copy()) / 255
    mean, std = (torch.tensor(spec[key]) for key in ("mean", "std"))
    images = ((squared - mean) / std).permute(2, 0, 1)[None]
    with torch.inference_mode():
        expected = model(images if stages else images.flip(1)).sigmoid().numpy()
    np.testing.assert_allclose(1 / (1 + np.exp(-np.asarray(result[0][0]))), expected[0], atol=1e-5)
