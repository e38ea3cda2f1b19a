"""Bodies that are too large, malformed or of another type are refused; forms come in any cut."""

import asyncio
import base64
import io
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from service import errors
from service.http.requests.body import BYTES
from service.http.requests.uploads import (
    MAX_TEXT_BYTES,
    MAX_TEXT_PARTS,
    Upload,
    UploadShape,
    read_form,
)
from tests.support.serving import MAX_BODY_BYTES, PHOTO, assert_problem, send_image, to_base64

SHAPE = UploadShape(max_images=2)
CONTENT_TYPE = "multipart/form-data; boundary=frontier"


def test_missing_and_misnamed_image_fields_are_named(client: TestClient) -> None:
    wrong = client.post("/predict", files={"photo": PHOTO})
    assert "'photo'" in assert_problem(wrong, 422, "unknown_field")["detail"]
    for none in (
        client.post("/predict", files={"top_k": (None, "1")}),
        client.post("/predict"),
        client.post("/predict", json={}),
    ):
        assert "'image'" in assert_problem(none, 422, "missing_field")["detail"]


def test_body_over_the_limit_is_413_in_every_form(client: TestClient) -> None:
    large = b"x" * (MAX_BODY_BYTES + 1)
    image = {"Content-Type": "image/png"}
    assert_problem(client.post("/predict", content=large, headers=image), 413, "body_too_large")
    chunked = client.post("/predict", content=io.BytesIO(large), headers=image)
    assert_problem(chunked, 413, "body_too_large")
    lying = client.post("/predict", content=large, headers={**image, "Content-Length": "5"})
    assert_problem(lying, 413, "body_too_large")
    assert_problem(send_image(client, large), 413, "body_too_large")
    assert_problem(client.post("/predict", json={"image": "A" * 400_000}), 413, "body_too_large")


URL = f"data:image/png;base64,{to_base64(PHOTO)}"
ENCODINGS = [PHOTO, to_base64(PHOTO), b"\n" + base64.encodebytes(PHOTO), URL, f"{URL}\n"]


@pytest.mark.parametrize("path", ["/predict", "/predict/batch", "/embed"])
@pytest.mark.parametrize("kind", ["image/png", "text/plain;charset=UTF-8", BYTES, None])
def test_lone_image_is_the_body_as_bytes_or_base64(
    client: TestClient, path: str, kind: str | None
) -> None:
    field = "image" if path == "/predict" else "images"
    headers = {} if kind is None else {"Content-Type": kind}
    where = f"{path}?{'encoding' if path == '/embed' else 'embedding'}=base64"
    bodies: list[Any] = [{"files": {field: (None, content)}} for content in ENCODINGS]
    bodies += [{"content": content, "headers": headers} for content in ENCODINGS]
    answers = [client.post(where, **body).text for body in bodies]
    assert len({re.findall('"embedding":"[^"]{9,}"', answer)[0] for answer in answers}) == 1
    for content in (b'{"image": "AAAA"}', b"--x\r\n"):
        other = client.post(path, content=content, headers=headers)
        assert_problem(other, 415, "unsupported_media_type")
    broken = client.post(path, content=f"{URL}?", headers=headers)
    assert "standard base64" in broken.text
    raw = client.post(path, files={field: b"FOVb" + b"0" * 100})  # all of its bytes are base64's
    assert "RAW of Sigma (X3F)" in raw.text


@pytest.mark.parametrize("encoding", ["gzip", "gzip, identity", "nonsense", ""])
def test_content_encoding_is_415(client: TestClient, encoding: str) -> None:
    headers = {"Content-Type": "image/png", "Content-Encoding": encoding}
    response = client.post("/predict", content=PHOTO, headers=headers)
    assert_problem(response, 415, "unsupported_content_encoding")


@pytest.mark.parametrize(
    "body",
    [
        b"{%b}" % b",".join(b'"%d": 1' % number for number in range(101)),
        *(b'{"image": "', b"[" * 250_000, b'{"a":' * 40_000, b"", b"[1]", b"null"),
        *(b"\xef\xbb\xbf\xef\xbb\xbf{}", b'{"\\ud800": 1}', b'{"image": "\xff"}'),
        *(b'{"image": "AAAA", "threshold": NaN}', b'{"image": "AAAA", "threshold": -Infinity}'),
        *(b'{"image": 5}', b'{"image": ["AAAA"]}', b'{"image": "***"}', b'{"image": "AAA"}'),
        *(b'{"image": "AAAA\\ud800"}', b'{"image": "data:image/png,AAAA"}'),
    ],
    ids=range(18),
)
def test_malformed_json_is_400(client: TestClient, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    response = client.post("/predict", content=body, headers=headers)
    assert_problem(response, 400, "malformed_body")
    assert len(response.content) < 10_000


def test_repeated_member_and_broken_json_have_different_messages(client: TestClient) -> None:
    headers = {"Content-Type": "application/json"}
    for body, words in ((b'{"top_k": 1, "top_k": 2}', "twice"), (b'{"top_k": 1', "valid JSON")):
        broken = client.post("/predict", content=body, headers=headers)
        assert words in assert_problem(broken, 400, "malformed_body")["detail"]


def make_part(name: str, content: bytes, extra: str = "") -> bytes:
    head = f'--frontier\r\nContent-Disposition: form-data; name="{name}"{extra}\r\n\r\n'
    return head.encode() + content + b"\r\n"


def make_body(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--frontier--\r\n"


def read(body: bytes, chunk_size: int = 1000, content_type: str = CONTENT_TYPE) -> Upload:
    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), chunk_size):
            yield body[start : start + chunk_size]

    return asyncio.run(read_form(chunks(), content_type, SHAPE))


@given(
    st.lists(st.binary(max_size=200), min_size=1, max_size=2),
    st.lists(st.text(max_size=20), max_size=3),
    st.integers(1, 300),
)
def test_parts_are_whole_for_every_cut_of_the_body(
    images: list[bytes], texts: list[str], chunk_size: int
) -> None:
    # Content that contains the boundary is another body, not another cut of this one.
    images = [content.replace(b"--", b"==") for content in images]
    texts = [text.replace("--", "==") for text in texts]
    parts = [make_part("image", c, '; filename="a"') for c in images]
    parts += [make_part("include", f"{text};".encode()) for text in texts]
    parts.append(make_part("include", b""))
    form = read(make_body(*parts), chunk_size)
    assert form.images == images
    assert form.fields.get("include", []) == [f"{text};" for text in texts]


@given(st.binary(max_size=400))
def test_random_bytes_give_a_form_or_an_error_of_ours(body: bytes) -> None:
    for content in (body, b"--frontier\r\n" + body, make_part("image", b"")[:-2] + body):
        try:
            read(content)
        except errors.ServiceError:
            continue


IMAGE = make_part("image", b"good")
ENCODED = make_part("image", b"", "\r\nContent-Encoding: gzip")


@pytest.mark.parametrize(
    ("body", "error"),
    [
        # The reader stops at the first part too many: the bytes after it are invalid.
        (b"".join([make_part("image", b"")] * 3) + b"\0" * 1000, errors.TooManyImages),
        (make_body(make_part("photo", b"")), errors.UnknownField),
        (make_body(IMAGE, *[make_part("top_k", b"1")] * 2), errors.RepeatedField),
        (make_body(IMAGE, make_part("include", b"caf\xe9")), errors.InvalidParameters),
        (make_body(make_part("include", b"x" * (MAX_TEXT_BYTES + 1))), errors.BodyTooLarge),
        (make_body(ENCODED), errors.UnsupportedContentEncoding),
        *((body, errors.MalformedBody) for body in (
            make_body(*[make_part("include", b"")] * (MAX_TEXT_PARTS + 1)),
            make_body(b'--frontier\r\nX: "y"\r\n\r\n\r\n'),
            *(make_part("image", b"no closing boundary"), b"", b"not multipart at all"),
        )),
    ],
)  # fmt: skip
def test_bad_form_is_refused(body: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        read(body)
    assert read(make_body(IMAGE)).images == [b"good"]


@pytest.mark.parametrize(
    ("encoding", "content"),
    [("8bit", b"good"), ("Base64", b"Z2\r\n9vZA==\n"), ("quoted-printable", b"g=6Fod")],
)
def test_part_is_decoded_by_its_transfer_encoding(encoding: str, content: bytes) -> None:
    header = f"\r\nContent-Transfer-Encoding: {encoding}"
    assert read(make_body(make_part("image", content, header))).images == [b"good"]


@pytest.mark.parametrize(
    ("encoding", "words"), [("uuencode", "must be one of 7bit"), ("base64", "is not the base64")]
)
def test_transfer_encoding_that_cannot_be_decoded_is_named(encoding: str, words: str) -> None:
    header = f"\r\nContent-Transfer-Encoding: {encoding}"
    with pytest.raises(errors.MalformedBody, match=words):
        read(make_body(make_part("image", b"*", header)))


@pytest.mark.parametrize("boundary", ["", "; boundary=", "; boundary=" + "x" * 300])
def test_missing_or_huge_boundary_is_refused(boundary: str) -> None:
    with pytest.raises(errors.MalformedBody):
        read(make_body(make_part("image", b"")), content_type=f"multipart/form-data{boundary}")


@pytest.mark.parametrize(
    "name", ["käse.jpg".encode("latin-1"), "写真.jpg".encode("shift_jis"), b"\xff\xfe", b"\xc3"]
)
@pytest.mark.parametrize("extra", [b'; filename="%b"', b"; filename=%b", b"; filename*=UTF-8''%b"])
def test_name_of_a_file_may_be_any_bytes(name: bytes, extra: bytes) -> None:
    head = b'--frontier\r\nContent-Disposition: form-data; name="image"' + extra % name
    assert read(make_body(head + b"\r\n\r\nphoto\r\n")).images == [b"photo"]


def test_unknown_field_is_named_as_it_was_sent() -> None:
    with pytest.raises(errors.UnknownField, match="'größe'"):
        read(make_body(make_part("größe", b"")))
