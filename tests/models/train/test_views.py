"""Training uses the pixels of the service; errors name an unreadable photo."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from models.config import InputConfig
from models.data.records import DataError, LabelledImage
from models.train.recipe import Recipe
from models.train.views import Photos, evaluation_transform, read_picture, training_transform
from service.bundle.card import InputContract
from service.images.decode import decode_image
from tests.support.odd_files import make_cut_files


def paint(mode: str) -> Image.Image:
    """Returns a picture with see-through parts, or of 16 bits, in one of Pillow's modes."""
    stream = np.random.default_rng(0)
    if mode == "I;16":
        return Image.fromarray(stream.integers(0, 2**16, (48, 64)).astype(np.uint16))
    pixels = stream.integers(0, 256, (48, 64, 4)).astype(np.uint8)
    pixels[:20, :, 3] = 0
    return Image.fromarray(pixels).convert(mode)


def save(folder: Path, mode: str) -> Path:
    path = folder / f"{mode[0]}.png"
    if mode == "P":
        paint("RGBA").quantize(16).save(path)
    else:
        paint(mode).save(path)
    return path


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA", "P", "I;16"])
def test_picture_has_the_pixels_that_the_service_decodes(tmp_path: Path, mode: str) -> None:
    path = save(tmp_path, mode)
    contract = InputContract(
        height=48, width=64, resize_mode="squash", crop_pct=1.0, interpolation="bilinear"
    )
    served = decode_image(path.read_bytes(), contract, 10**6).pixels
    np.testing.assert_array_equal(read_picture(LabelledImage(path, "val", ())), served)
    # Squashed photos are never cropped, even if the configuration has a crop_pct.
    transform = evaluation_transform(InputConfig(height=48, width=64, crop_pct=0.8))
    tensor, _ = Photos((LabelledImage(path, "val", ()),), torch.zeros(1, 1), transform)[0]
    np.testing.assert_allclose(tensor.permute(1, 2, 0).numpy() * 255, served, atol=1e-3)


@pytest.mark.parametrize("more", [{}, {"fit_size": 50}])
def test_padded_picture_has_the_pixels_of_the_service(tmp_path: Path, more: dict[str, int]) -> None:
    image = LabelledImage(save(tmp_path, "RGBA"), "val", ())
    size = {"height": 48, "width": 48, **more}
    prepared = InputConfig(**size, resize_mode="pad", pad_color=(0, 99, 255))
    contract = InputContract.model_validate(prepared.model_dump())
    served = decode_image(image.path.read_bytes(), contract, 10**6).pixels
    tensor = evaluation_transform(prepared)(read_picture(image))
    np.testing.assert_allclose(tensor.permute(1, 2, 0).numpy() * 255, served, atol=1e-3)
    augmented = training_transform(Recipe(train_size=40), prepared)(read_picture(image))
    assert augmented.shape == (3, 40, 40)


CUT_FILES = make_cut_files()


@pytest.mark.parametrize("name", [name for name in CUT_FILES if name.endswith("cut")])
def test_jpeg_that_is_cut_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "cut.jpg"
    path.write_bytes(CUT_FILES[name])
    with pytest.raises(DataError, match=r"cut\.jpg is missing or not a readable picture"):
        read_picture(LabelledImage(path, "val", ()))
