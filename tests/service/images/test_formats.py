"""HEIC and AVIF without their decoder; files that are no images."""

import pytest

from service.errors import InvalidImage
from service.images import formats
from service.images.decode import decode_image
from service.images.formats import find_unsupported_format
from tests.service.images.test_heif import CONTRACT


def test_containers_are_unsupported_without_the_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "FORMATS", ("JPEG", "PNG"))
    for brand in b"heic heix heim heis hevc hevx hevm hevs mif1".split():
        assert find_unsupported_format(b"\0\0\0\x1cftyp" + brand) == "HEIF"
    assert find_unsupported_format(b"\0\0\0\x1cftypavif") == "AVIF"
    assert find_unsupported_format(b"\0\0\0\x1cftypisom") == "ISO media 'isom'"


@pytest.mark.parametrize(
    ("data", "detail"),
    [
        (
            b"version https://git-lfs.github.com/spec/v1\n",
            "It is a pointer of Git LFS: run git lfs",
        ),
        (b"\xef\xbb\xbf\n<!DOCTYPE HTML><title>", r"It is a web page \(HTML\): download the photo"),
        (b"<?xml version='1.0'?><Error><Code>NoSuchKey", "It is a text: open it"),
        ("Caf\xe9 und Br\xf6tchen\n".encode() * 99, "It is a text: open it"),
        (b"/9j/4AAQSkZJRgABAQ", "It is base64: decode it first"),
        (bytes(99), "It is zeros, at least at its start: copy it again"),
        (b"junk", None),
        (b"\xfe\xed" * 99, None),
    ],
)
def test_file_that_is_no_image_is_named(data: bytes, detail: str | None) -> None:
    with pytest.raises(InvalidImage, match=detail) as refused:
        decode_image(data, CONTRACT, 10_000)
    assert (refused.value.detail is None) == (detail is None)
