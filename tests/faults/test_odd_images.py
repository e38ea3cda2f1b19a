"""Odd files that browsers show get the scores of the usual file; cut and damaged ones are 400.

Whole files of kinds that are not decoded are 415, and the answer names the kind.
"""

from typing import Any

import httpx2 as httpx
import pytest

from tests.support.odd_files import make_cut_files, make_damaged_pngs, make_odd_files
from tests.support.photos import make_photo
from tests.support.serving import assert_problem, labels_of, send_image, send_images, to_base64
from tests.support.unread_files import make_unread_files

ALL = {"top_k": 5}
ODD_FILES = make_odd_files()
UNREAD_FILES = make_unread_files()
BAD_FILES = make_cut_files() | make_damaged_pngs()
KINDS = ("baseline JPEG without end, trailer", "progressive JPEG without end",
         "PNG, long ICC profile", "PNG, wrong checksum in tEXt", "PNG, short pHYs",
         "BMP whose alpha is 0", "JPEG, orientation of type 4, >")  # fmt: skip


@pytest.mark.parametrize("name", ODD_FILES)
def test_odd_file_gets_the_scores_of_the_usual_one(client: httpx.Client, name: str) -> None:
    found, wanted = (labels_of(send_image(client, file, params=ALL)) for file in ODD_FILES[name])
    assert found == wanted


@pytest.mark.parametrize("name", BAD_FILES)
def test_cut_or_damaged_file_is_400(client: httpx.Client, name: str) -> None:
    assert_problem(send_image(client, BAD_FILES[name]), 400, "invalid_image")


@pytest.mark.parametrize(
    ("name", "detail"),
    [
        ("baseline JPEG cut", "The JPEG ends early."),
        ("IDAT", "The PNG's IDAT has a wrong checksum."),
    ],
)
def test_answer_names_the_damage(client: httpx.Client, name: str, detail: str) -> None:
    answer = send_image(client, BAD_FILES[name])
    assert_problem(answer, 400, "invalid_image")
    assert answer.json()["detail"] == detail
    labels_of(send_image(client, make_photo(9)))


@pytest.mark.parametrize("name", UNREAD_FILES)
def test_whole_file_of_another_kind_is_415_by_its_name(client: httpx.Client, name: str) -> None:
    file, kind = UNREAD_FILES[name]
    problem = assert_problem(send_image(client, file), 415, "unsupported_image")
    assert f"type is {kind}" in problem["detail"]
    first, second = send_images(client, [file, make_photo(9)]).json()["results"]
    assert first["error"]["code"] == "unsupported_image"
    assert second["labels"]


def score_in_batch(client: httpx.Client, file: bytes) -> Any:
    answer = send_images(client, [file, file], params=ALL).json()["results"]
    return [result["labels"] for result in answer]


def score_in_json(client: httpx.Client, file: bytes) -> Any:
    return labels_of(client.post("/predict", json={"image": to_base64(file), **ALL}))


def score_in_open_inference(client: httpx.Client, file: bytes) -> Any:
    model = client.get("/info").json()["model"]["name"]
    tensor = {"name": "image", "datatype": "BYTES", "shape": [1], "data": [to_base64(file)]}
    answer = client.post(f"/v2/models/{model}/infer", json={"inputs": [tensor]}).json()
    return answer["outputs"]


@pytest.mark.parametrize("score", [score_in_batch, score_in_json, score_in_open_inference])
@pytest.mark.parametrize("name", KINDS)
def test_odd_file_is_read_by_every_route(client: httpx.Client, name: str, score: Any) -> None:
    odd, usual = ODD_FILES[name]
    assert score(client, odd) == score(client, usual) != score(client, make_photo(9))
