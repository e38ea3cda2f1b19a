"""HEIC and AVIF without their decoder."""

import pytest

from service.errors import InvalidImage, UnsupportedImage
from service.images import formats
from service.images.decode import decode_image
from service.images.formats import find_unsupported_format
from tests.service.images.test_heif import CONTRACT


@pytest.mark.parametrize("brand", [b"heic", b"avif", b"mif1", b"avis"])
def test_junk_in_a_container_is_invalid_or_unsupported(brand: bytes) -> None:
    with pytest.raises((InvalidImage, UnsupportedImage)):
        decode_image(b"\0\0\0\x1cftyp" + brand + bytes(200), CONTRACT, 10_000)


def test_containers_are_unsupported_without_the_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "FORMATS", ("JPEG", "PNG"))
    for brand in b"heic heix heim heis hevc hevx hevm hevs mif1".split():
        assert find_unsupported_format(b"\0\0\0\x1cftyp" + brand) == "HEIF"
    assert find_unsupported_format(b"\0\0\0\x1cftypavif") == "AVIF"
    assert find_unsupported_format(b"\0\0\0\x1cftypisom") == "ISO media 'isom'"
