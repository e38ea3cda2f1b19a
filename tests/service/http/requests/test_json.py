"""JSON bodies: their limits, and the threads that parse them."""

from itertools import product
from threading import get_ident
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.http.requests import json as json_bodies
from service.http.requests.json import MAX_PARTS, parse_json
from tests.support.serving import PHOTO, to_base64
from tests.support.threads import count_turns

BUNDLE, SETTINGS = "open_bundle", dict[str, Any]()


# Each reads its body in another way. Label sets may have millions of numbers: embeddings.
READERS = {"/predict": "include", "/v2/models/tiny-open/infer": "inputs", "/labels": "labels"}
DEEP = "[" * 900 + "]" * 900


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        *product(READERS, ["[]", "{}", '""', DEEP], ["lists, objects and texts"]),
        *product([*READERS][:2], ["1", "1e1", "true"], ["values"]),
    ],
)
def test_millions_of_values_are_refused_before_they_are_parsed(
    client: TestClient, path: str, value: str, words: str
) -> None:
    times = 2 * MAX_PARTS // (900 if value == DEEP else 1)
    body = f'{{"{READERS[path]}": [{",".join([value] * times)}]}}'
    response = client.post(path, content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    assert words in response.text


def test_thresholds_may_not_have_the_numbers_of_embeddings(client: TestClient) -> None:
    content = f'{{"labels": [{",".join("1" * 2 * MAX_PARTS)}]}}'
    headers = {"Content-Type": "application/json"}
    response = client.patch("/labels/everyday", content=content, headers=headers)
    assert (response.status_code, "values" in response.text) == (400, True)


@pytest.mark.parametrize(
    ("number", "times"), [("1", 2_000_000), ("1e1", 1_000_000), ("9" * 4000, 4000)]
)
def test_others_run_while_numbers_are_parsed(number: str, times: int) -> None:
    body = f'{{"a": [{",".join([number] * times)}]}}'.encode()
    assert count_turns(lambda: parse_json(body, max_numbers=times)) > 10


@pytest.mark.parametrize("path", [*READERS, "/v1/embeddings"])
@pytest.mark.parametrize(
    ("encoding", "words"),
    [("utf-16", "UTF-16"), ("utf-32-be", "UTF-32-BE"), ("latin-1", "byte 0xE9 at 5 may be Latin")],
)
def test_json_in_another_encoding_is_refused_by_its_name(
    client: TestClient, path: str, encoding: str, words: str
) -> None:
    headers = {"Content-Type": "application/json"}
    response = client.post(path, content='{"café": 1}'.encode(encoding), headers=headers)
    assert (response.status_code, words in response.text) == (400, True)


def test_json_may_begin_with_a_byte_order_mark() -> None:
    assert parse_json(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


@pytest.mark.parametrize(("length", "in_loop"), [(1000, True), (100_000, False)])
def test_long_json_is_parsed_in_a_side_thread(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, length: int, *, in_loop: bool
) -> None:
    loop_thread, threads, parse = client.portal.call(get_ident), [], json_bodies.parse_json

    def remember(*arguments: Any) -> dict[str, Any]:
        threads.append(get_ident())
        return parse(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(json_bodies, "parse_json", remember)
        body = {"image": to_base64(PHOTO), "include": ["x" * length]}
        assert client.post("/predict", json=body).status_code == 422
    assert [thread == loop_thread for thread in threads] == [in_loop]
