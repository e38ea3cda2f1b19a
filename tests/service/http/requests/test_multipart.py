"""Tests of the multipart reader: any split of the body gives the same parts, within limits."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import (
    BodyTooLarge,
    MalformedBody,
    RepeatedField,
    ServiceError,
    TooManyImages,
    UnknownField,
)
from service.http.requests.multipart import (
    MAX_TEXT_BYTES,
    MAX_TEXT_PARTS,
    Form,
    FormShape,
    read_multipart,
)

SHAPE = FormShape("image", 2, frozenset({"top_k"}), frozenset({"include"}))
CONTENT_TYPE = "multipart/form-data; boundary=frontier"


def make_part(name: str, content: bytes, extra: str = "") -> bytes:
    head = f'--frontier\r\nContent-Disposition: form-data; name="{name}"{extra}\r\n\r\n'
    return head.encode() + content + b"\r\n"


def make_body(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--frontier--\r\n"


def read(body: bytes, chunk_size: int = 1000, content_type: str = CONTENT_TYPE) -> Form:
    """Runs the reader to its end; it awaits nothing but its chunks, which are all there."""

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), chunk_size):
            yield body[start : start + chunk_size]

    reading = read_multipart(chunks(), content_type, SHAPE)
    try:
        reading.send(None)
    except StopIteration as done:
        form: Form = done.value
        return form
    raise AssertionError("the reader waits for more than its chunks")


@given(
    st.lists(st.binary(max_size=200), min_size=1, max_size=2),
    st.lists(st.binary(max_size=20), max_size=3),
    st.integers(1, 300),
)
def test_parts_come_back_whole_however_the_body_is_cut(
    images: list[bytes], texts: list[bytes], chunk_size: int
) -> None:
    # Content that contains the boundary is another body, not another cut of this one.
    images, texts = ([c.replace(b"--", b"==") for c in group] for group in (images, texts))
    parts = [make_part("image", c, '; filename="a"') for c in images]
    parts += [make_part("include", c) for c in texts]
    form = read(make_body(*parts), chunk_size)
    assert form.images == images
    assert form.texts.get("include", []) == texts


@given(st.binary(max_size=400))
def test_random_bytes_give_a_form_or_an_error_of_ours(body: bytes) -> None:
    for content in (body, b"--frontier\r\n" + body, make_part("image", b"")[:-2] + body):
        try:
            read(content)
        except ServiceError:
            continue


def test_image_without_file_name_is_an_image() -> None:
    assert read(make_body(make_part("image", b"pixels"))).images == [b"pixels"]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (make_body(*[make_part("image", b"")] * 3), TooManyImages),
        (make_body(make_part("photo", b"")), UnknownField),
        (make_body(make_part("top_k", b"1"), make_part("top_k", b"1")), RepeatedField),
        (make_body(*[make_part("include", b"")] * (MAX_TEXT_PARTS + 1)), MalformedBody),
        (make_body(make_part("include", b"x" * (MAX_TEXT_BYTES + 1))), BodyTooLarge),
        (make_body(b'--frontier\r\nX: "y"\r\n\r\n\r\n'), MalformedBody),
        (make_part("image", b"no closing boundary"), MalformedBody),
        (b"", MalformedBody),
        (b"not multipart at all", MalformedBody),
    ],
)
def test_bad_form_is_refused(body: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        read(body)
    assert read(make_body(make_part("image", b"good"))).images == [b"good"]


@pytest.mark.parametrize("boundary", ["", "; boundary=", "; boundary=" + "x" * 300])
def test_missing_or_huge_boundary_is_refused(boundary: str) -> None:
    with pytest.raises(MalformedBody):
        read(make_body(make_part("image", b"")), content_type=f"multipart/form-data{boundary}")


def test_reader_stops_at_the_first_part_too_many() -> None:
    # What follows the surplus part is not even valid.
    with pytest.raises(TooManyImages):
        read(b"".join([make_part("image", b"")] * 3) + b"\0" * 1000, chunk_size=10)


@pytest.mark.parametrize(
    "name", ["käse.jpg".encode("latin-1"), "写真.jpg".encode("shift_jis"), b"\xff\xfe", b"\xc3"]
)
@pytest.mark.parametrize("extra", [b'; filename="%b"', b"; filename=%b", b"; filename*=UTF-8''%b"])
def test_name_of_a_file_may_be_any_bytes(name: bytes, extra: bytes) -> None:
    head = b'--frontier\r\nContent-Disposition: form-data; name="image"' + extra % name
    assert read(make_body(head + b"\r\n\r\nphoto\r\n")).images == [b"photo"]


def test_unknown_field_is_named_as_it_was_sent() -> None:
    with pytest.raises(UnknownField, match="'größe'"):
        read(make_body(make_part("größe", b"")))
