"""API keys: what each kind allows, in which header, from a variable or a file; never shown."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.bundle.reader import Bundle
from service.errors import Forbidden, StartError, Unauthorized
from service.http.security.keys import ADMINISTRATE, Guard, KeyRing
from service.http.security.rates import LIMITED
from service.settings import Settings
from tests.support.serving import assert_problem, send_image, serve_app

PREDICT, OTHER, ADMIN = "predict-key-000001", "geheimer Schlüssel à", "admin-key-00000001"
UNKNOWN = "made-up-key-000001"
PETS = {"name": "pets", "labels": ["cat"]}


@pytest.fixture(scope="module")
def client(open_bundle: Bundle) -> Iterator[TestClient]:
    keys = {"predict_keys": f"{PREDICT}, {OTHER}", "admin_keys": ADMIN}
    with serve_app(open_bundle.path, **keys) as client:
        yield client


def bearing(key: str) -> dict[str, Any]:
    return {"Authorization": f"Bearer {key}".encode()}


def list_routes(routes: list[Any]) -> Iterator[Any]:
    for route in routes:
        router = getattr(route, "original_router", None)  # of an included one
        yield from [route] if router is None else list_routes(router.routes)


def read_keys(**keys: str) -> KeyRing:
    return KeyRing(Settings.model_validate(keys))


@pytest.mark.parametrize(
    ("headers", "detail"),
    [
        *((headers, "Send a key") for headers in ({}, bearing(""), {"Authorization": PREDICT})),
        ({"Authorization": f"Basic {PREDICT}"}, "Send a key"),
        ({"Cookie": f"key={PREDICT}"}, "Send a key"),
        *((bearing(key), "The key is unknown.") for key in (UNKNOWN, PREDICT[:-1], OTHER + "x")),
        ({"X-API-Key": UNKNOWN}, "The key is unknown."),
        ({"X-API-Key": "k\xe9y".encode("latin-1")}, "The key is unknown."),
    ],
)
def test_request_without_a_known_key_is_401(
    client: TestClient, headers: dict[str, Any], detail: str
) -> None:
    for response in (
        send_image(client, headers=headers),
        client.get("/labels", headers=headers),
        client.get("/info", headers=headers),
        client.post("/labels", json=PETS, headers=headers),
        client.delete("/labels/pets", headers=headers),
    ):
        assert detail in assert_problem(response, 401, "unauthorized")["detail"]
        assert response.headers["www-authenticate"] == "Bearer"
        assert PREDICT not in response.text
    assert send_image(client, headers=bearing(PREDICT)).status_code == 200


def test_key_is_checked_before_the_body_is_read(client: TestClient) -> None:
    large = client.post("/predict", content=b"x" * 30_000_000)
    assert_problem(large, 401, "unauthorized")


@pytest.mark.parametrize("key", [PREDICT, OTHER, ADMIN])
def test_predict_and_admin_keys_predict_in_either_header(client: TestClient, key: str) -> None:
    lower: dict[str, Any] = {"Authorization": f"bearer {key}".encode()}
    for headers in (bearing(key), {"X-API-Key": key.encode()}, lower):
        assert send_image(client, headers=headers).status_code == 200
        assert client.get("/labels", headers=headers).status_code == 200


def test_white_space_around_a_key_is_ignored(client: TestClient) -> None:
    for headers in ({"Authorization": f"Bearer  {PREDICT} \t"}, {"X-API-Key": f" {PREDICT} "}):
        assert send_image(client, headers=headers).status_code == 200
    both = {"Authorization": "Bearer ", "X-API-Key": PREDICT}
    assert send_image(client, headers=both).status_code == 200


def test_every_route_but_health_and_pages_has_a_guard_and_counts(client: TestClient) -> None:
    routes = list(list_routes(client.app.router.routes))  # type: ignore[attr-defined]
    bare = {
        route.path
        for route in routes
        if not any(isinstance(depends.dependency, Guard) for depends in route.dependencies)
    }
    changing = {r.name for r in routes if all(each in r.dependencies for each in ADMINISTRATE)}
    sets = {"register_label_set", "replace_label_set", "change_thresholds", "delete_label_set"}
    assert changing == sets | {"add_examples", "delete_examples"}
    health = {"/livez", "/readyz", "/v2/health/live", "/v2/health/ready"}
    assert bare == health | {"/page/{path:path}", "/swagger-ui/{path:path}"}
    uncounted = {route.path for route in routes if LIMITED not in route.dependencies}
    v2 = {path for path in uncounted if path.startswith("/v2/models/") and path.endswith("/ready")}
    assert uncounted == bare | v2 | {"/", "/docs", "/metrics", "/v2"}


def test_openapi_document_describes_how_to_send_a_key(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    assert set(document["components"]["securitySchemes"]) == {"bearer", "header"}
    assert document["paths"]["/predict"]["post"]["security"]
    assert "security" not in document["paths"]["/livez"]["get"]
    assert "401" in document["paths"]["/predict"]["post"]["responses"]


def test_keys_come_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys"
    monkeypatch.setenv("HOME", str(tmp_path))
    for encoding in ("utf-8", "utf-8-sig"):  # Windows saves with a byte order mark
        file.write_text(f"{PREDICT}\n\n{OTHER}\n", encoding)
        for named in (f"@{file}", "@~/keys"):
            ring = read_keys(predict_keys=named)
            ring.check_predict(PREDICT)
            ring.check_predict(OTHER)


@pytest.mark.parametrize("kinds", [("predict",), ("admin",), ("predict", "admin")])
def test_each_kind_of_key_allows_its_own(kinds: tuple[str, ...]) -> None:
    keys = {"predict": PREDICT, "admin": ADMIN}
    ring = read_keys(**{f"{kind}_keys": keys[kind] for kind in kinds})
    assert ring.check_predict(PREDICT) == ("predict" in kinds)  # whether a key is needed
    with pytest.raises(Forbidden if "predict" in kinds else Unauthorized):
        ring.check_administrate(PREDICT)
    with pytest.raises(Unauthorized):
        ring.check_administrate(None)
    if "admin" in kinds:
        assert ring.check_administrate(ADMIN)


@pytest.mark.parametrize(
    "text", ["short", ",", " ", "@/no/such/file/of/keys", f"{PREDICT},short", PREDICT[:15]]
)
def test_invalid_keys_stop_the_start_without_being_shown(text: str) -> None:
    with pytest.raises(StartError) as caught:
        read_keys(admin_keys=text)
    assert "admin_keys" in str(caught.value)
    assert "short" not in str(caught.value)
    assert PREDICT not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"\xff", "cannot be read: it is not UTF-8 text"),
        (b" \n,\n", "contains no keys"),
    ],
)
def test_key_file_that_has_no_keys_is_named(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StartError, match=f"predict_keys: the key file {path} {reason}"):
        read_keys(predict_keys=f"@{path}")


@pytest.mark.parametrize("options", [{}, {"rate_limit": "1000000/second"}])
def test_wrong_keys_are_429_after_a_burst_and_the_right_one_is_served(
    open_bundle: Bundle, options: dict[str, str]
) -> None:
    keys = {"predict_keys": PREDICT, "admin_keys": ADMIN, "label_store": "memory"}
    with serve_app(open_bundle.path, **keys, **options) as client:
        guesses = [{"X-API-Key": f"wrong-key-{number:08}"} for number in range(100)]
        paths = ("/info", "/labels", "/v2/models/x")
        codes = [client.get(paths[i % 3], headers=key).status_code for i, key in enumerate(guesses)]
        assert codes[:60] == [401] * 60
        assert 429 in codes[60:]
        refused = client.delete("/labels/x", headers=guesses[0])
        assert_problem(refused, 429, "rate_limited")
        assert int(refused.headers["retry-after"]) == 1
        assert_problem(client.get("/info"), 401, "unauthorized")  # not a guess
        assert client.get("/info", headers={"X-API-Key": ADMIN}).status_code == 200
        assert send_image(client, headers={"X-API-Key": PREDICT}).status_code == 200


def test_settings_never_show_a_key() -> None:
    settings = Settings.model_validate({"predict_keys": PREDICT})
    assert PREDICT not in f"{settings!r} {settings} {settings.model_dump_json()}"
    assert PREDICT not in repr(vars(KeyRing(settings)))


def test_caller_is_a_known_key_or_an_address() -> None:
    name = read_keys(predict_keys=f"{PREDICT},{OTHER}").name_caller
    assert name(PREDICT, "1.2.3.4") == name(PREDICT, "5.6.7.8")
    assert name(PREDICT, "1.2.3.4") != name(OTHER, "1.2.3.4")
    assert PREDICT not in name(PREDICT, "1.2.3.4")
    assert name(UNKNOWN, "1.2.3.4") == name(None, "1.2.3.4")
    assert name(None, "2001:db8::1") == name(None, "2001:db8::2")
    assert name(None, "2001:db8::1") != name(None, "2001:db8:1::1")
    assert name(None, "::ffff:1.2.3.4") != name(None, "::ffff:1.2.3.5")
    assert name(None, "unknown") == "address unknown"  # of a Unix socket
