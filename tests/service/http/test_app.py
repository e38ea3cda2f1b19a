"""Tests of the whole app: its life, wrong paths and methods."""

from pathlib import Path

from fastapi.testclient import TestClient

from service.errors import StartError
from service.pipeline.pipeline import Pipeline
from service.settings import Settings
from tests.support.serving import PHOTO, assert_method_refused, assert_problem, serve_app


def test_wrong_path_method_and_media_type_are_problems(client: TestClient) -> None:
    for path in ("/nowhere", "/predict/", "/labels/", "/..%2f..%2fetc/passwd", "/%00"):
        assert_problem(client.get(path), 404, "not_found")
    assert_problem(client.post("/predict/"), 404, "not_found")
    for method, path, allowed in (
        ("TRACE", "/predict", "POST"),
        ("DELETE", "/info", "GET, HEAD"),
        ("POST", "/labels/zoo", "GET, HEAD, PUT, PATCH, DELETE"),
        ("PATCH", "/labels", "GET, HEAD, POST"),
        ("POST", "/livez", "GET, HEAD"),
        ("DELETE", "/docs", "GET, HEAD"),
        ("POST", "/page/app.js", "GET, HEAD"),
    ):
        assert_method_refused(client, method, path, allowed)
    for path, media_type, supported in (
        ("/predict", "application/x-www-form-urlencoded", "multipart/form-data, image/*, "),
        ("/predict", "nonsense", "multipart/form-data, image/*, application/json"),
        ("/predict/batch", "video/mp4", "multipart/form-data, image/*, application/json"),
        ("/labels", "text/plain", "application/json"),
    ):
        response = client.post(path, content=PHOTO, headers={"Content-Type": media_type})
        detail = assert_problem(response, 415, "unsupported_media_type")["detail"]
        assert f"one of: {supported}" in detail


def test_every_route_that_answers_get_answers_head(client: TestClient) -> None:
    document = client.app.openapi()  # type: ignore[attr-defined]
    paths = [path for path, methods in document["paths"].items() if "get" in methods]
    assert {"/metrics", "/v2/health/live", "/v2/health/ready", "/labels/{name}"} <= set(paths)
    model = client.get("/info").json()["model"]
    label_set = client.get("/labels").json()["label_sets"][0]["name"]
    for path in (*paths, "/", "/docs", "/openapi.json", "/page/app.js"):
        name = model["name"] if path.startswith("/v2") else label_set
        path = path.format(name=name, version=model["version"])
        got, asked = client.get(path), client.head(path)
        assert (got.status_code, asked.status_code) == (200, 200), path
        assert set(asked.headers) == set(got.headers)
    assert client.head("/nowhere").status_code == 404
    assert not any("head" in methods for methods in document["paths"].values())


def test_app_never_becomes_ready_if_the_bundle_cannot_be_opened() -> None:
    def fail(_settings: Settings) -> Pipeline:
        raise StartError("secret reason")

    with serve_app(Path("no-such-bundle"), fail) as client:
        response = client.get("/readyz")
        assert_problem(response, 503, "not_ready")
        assert "secret" not in response.text
        assert client.get("/livez").status_code == 200
