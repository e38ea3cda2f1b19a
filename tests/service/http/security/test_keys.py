"""API keys: what each kind allows, in which header, from a variable or a file; never shown."""

import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import Request
from fastapi.testclient import TestClient

from service.bundle.reader import Bundle
from service.errors import StartError
from service.http.security.keys import ADMINISTRATE, Guard, KeyRing, name_address
from service.http.security.rates import LIMITED
from service.logs import make_formatter
from service.settings import Settings
from tests.support.serving import assert_problem, send_image, serve_app

PREDICT, OTHER, ADMIN = "predict-key-000001", "geheimer Schlüssel à", "admin-key-00000001"
UNKNOWN, NEXT = "made-up-key-000001", "predict-key-000002"
PETS = {"name": "pets", "labels": ["cat"]}
KEPT = "the earlier keys stay valid: correct the file"


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
    as_bearer = [{"Authorization": f"{text}{key}".encode()} for text in ("bearer ", "Bearer  ")]
    alone: list[dict[str, Any]] = [{"X-API-Key": text.encode()} for text in (key, f" {key} ")]
    both = {"Authorization": b"Bearer ", **alone[0]}
    for headers in (bearing(key), bearing(f"{key} \t"), *as_bearer, *alone, both):
        assert send_image(client, headers=headers).status_code == 200
        assert client.get("/labels", headers=headers).status_code == 200


def test_every_route_but_health_and_pages_has_a_guard_and_counts(client: TestClient) -> None:
    routes = list(list_routes(client.app.router.routes))  # type: ignore[attr-defined]
    bare = {
        route.path
        for route in routes
        if not any(isinstance(depends.dependency, Guard) for depends in route.dependencies)
    }
    changing = {r.name for r in routes if all(guard in r.dependencies for guard in ADMINISTRATE)}
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
    note = "# keys of the shop, and of its owner\f or both\u2028of its customers"
    for encoding in ("utf-8", "utf-8-sig"):  # Windows saves with a byte order mark
        for end in ("\n", "\r\n", "\r"):
            lines = [note, PREDICT, "", f" #shop:{UNKNOWN}", OTHER]
            file.write_bytes(end.join(lines).encode(encoding))
            for named in (f"@{file}", "@~/keys"):
                ring = read_keys(predict_keys=named)
                assert ring.identify(PREDICT)
                assert ring.identify(OTHER)
                assert len(ring._sets[0].identities) == 2


@pytest.mark.parametrize("kinds", [("predict",), ("admin",), ("predict", "admin")])
def test_administration_needs_a_key_if_there_is_any(
    open_bundle: Bundle, kinds: tuple[str, ...]
) -> None:
    keys = {f"{kind}_keys": {"predict": PREDICT, "admin": ADMIN}[kind] for kind in kinds}
    with serve_app(open_bundle.path, **keys, label_store="memory") as client:
        predicts = 401 if "predict" in kinds else 200
        assert send_image(client).status_code == predicts
        assert client.post("/labels", json=PETS).status_code == 401
        by_predict = client.post("/labels", json=PETS, headers=bearing(PREDICT))
        assert by_predict.status_code == (403 if "predict" in kinds else 401)
        by_admin = client.post("/labels", json=PETS, headers=bearing(ADMIN))
        assert by_admin.status_code == (201 if "admin" in kinds else 401)


@pytest.mark.parametrize(
    "text",
    [
        *("short", ",", " ", "@/no/such/file/of/keys", f"{PREDICT},short", PREDICT[:15]),
        *("a:short", f":{PREDICT}", f"a b:{PREDICT}", f"a:b:{PREDICT}", f"a: {PREDICT}"),
        *(f"{PREDICT}:", f"{'a' * 65}:{PREDICT}", f"ä:{PREDICT}", f"a:{PREDICT},b:{PREDICT}"),
        *(f"{PREDICT} # of the shop", f"{PREDICT},# of the whole shop", f"#{PREDICT}"),
        *(f"{PREDICT}\n\ufeff# of the whole shop", "\0".join(PREDICT), f"{PREDICT}\tshop"),
    ],
)
def test_invalid_keys_stop_the_start_without_being_shown(text: str) -> None:
    with pytest.raises(StartError) as caught:
        read_keys(admin_keys=text)
    assert "admin_keys" in str(caught.value)
    assert "short" not in str(caught.value)
    assert PREDICT[:15] not in str(caught.value)
    assert read_keys(admin_keys=f"\n# of the shop\n{PREDICT}").identify(PREDICT)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"\xff", "cannot be read: it is not UTF-8 text"),
        (b" \n,\n", "contains no keys"),
        (b"# keys of the shop", "contains no keys"),
        (b"x" * (2**20 + 1), "must have at most 1048576 bytes"),
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
    assert PREDICT not in repr([vars(keys) for keys in KeyRing(settings)._sets])


def test_caller_is_the_name_of_the_key_or_8_digits_of_its_digest() -> None:
    ring = read_keys(predict_keys=f"web.shop_1-a:{PREDICT},{OTHER}", admin_keys=f"ops:{ADMIN}")
    assert ring.identify(PREDICT) == ("web.shop_1-a", False)
    assert ring.identify(ADMIN) == ("ops", True)
    for unknown in (UNKNOWN, f"ops:{ADMIN}", "ops", ""):
        assert ring.identify(unknown) is None


def test_address_is_an_ipv6_network_of_64_bits() -> None:
    def name(address: str | None) -> str:
        client = None if address is None else (address, 1)
        return name_address(Request({"type": "http", "client": client}))

    assert name("2001:db8::1") == name("2001:db8::2") != name("2001:db8:1::1")
    assert name("::ffff:1.2.3.4") != name("::ffff:1.2.3.5")
    assert name(None) == "address unknown"  # of a Unix socket


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        *((None, "is missing"), ("", "contains no keys"), (OTHER[:9], "a key must be")),
        ("4 TB", "must have at most"),
    ],
)
def test_keys_follow_their_file_but_one_without_valid_keys_is_one_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str | None, reason: str
) -> None:
    caplog.set_level(logging.INFO)
    file = tmp_path / "keys"
    file.symlink_to("..data/keys")  # as Kubernetes mounts a secret
    mount_keys(tmp_path, f"old:{PREDICT}")
    ring = read_keys(predict_keys=f"@{file}", admin_keys=ADMIN)
    fields = [(vars(record)["setting"], vars(record)["keys"]) for record in caplog.records]
    assert fields == [("predict_keys", 1), ("admin_keys", 1)]
    caplog.clear()
    ring.reread()
    assert not caplog.records
    mount_keys(tmp_path, content)
    if content == "4 TB":
        os.truncate(file, 2**42)
    for _ in range(3):
        ring.reread()
    (line,) = caplog.messages
    assert reason in line
    assert line.endswith(KEPT)
    assert OTHER[:9] not in line
    assert ring.identify(PREDICT)
    mount_keys(tmp_path, f"new:{OTHER}\nops:{NEXT}")
    ring.reread()
    ring.reread(forced=True)  # SIGHUP
    assert [ring.identify(key) for key in (PREDICT, OTHER)] == [None, ("new", False)]
    assert ring.identify(ADMIN)
    assert [vars(record)["keys"] for record in caplog.records[1:]] == [2, 2]


def test_keys_are_read_again_after_an_error_that_passes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys"
    file.write_text(PREDICT)
    ring = read_keys(predict_keys=f"@{file}", admin_keys=ADMIN)
    file.write_text(OTHER)

    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as failing:
        failing.setattr(Path, "open", fail)
        for _ in range(3):
            ring.reread()
    assert caplog.messages == [f"predict_keys: MemoryError(); {KEPT}"]
    assert ring.identify(PREDICT)
    ring.reread()
    assert [ring.identify(key) is None for key in (PREDICT, OTHER, ADMIN)] == [True, False, False]


def mount_keys(folder: Path, content: str | None) -> None:
    version, link = folder / f"..{len(os.listdir(folder))}", folder / "..data.new"
    version.mkdir()
    if content is not None:
        (version / "keys").write_text(content)
    link.symlink_to(version.name)
    link.rename(folder / "..data")


def test_keys_of_a_pipe_are_read_once() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader), os.fdopen(writer, "w") as pipe:
        pipe.write(PREDICT)
        pipe.close()
        ring = read_keys(predict_keys=f"@/dev/fd/{reader}")
    ring.reread(forced=True)
    assert ring.identify(PREDICT)


def test_log_line_of_a_request_with_a_known_key_has_its_caller(
    open_bundle: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    keys = {"predict_keys": f"shop:{PREDICT},shop:{NEXT},{OTHER}", "admin_keys": f"ops:{ADMIN}"}

    def register(client: TestClient, headers: dict[str, Any]) -> Any:
        return client.post("/labels", json=PETS, headers=headers)

    with serve_app(open_bundle.path, **keys, rate_limit="3/day") as client:
        caplog.set_level(logging.INFO, "service.http.telemetry.access")
        caplog.handler.setFormatter(make_formatter("text"))
        for key, ask, status, caller in (
            (PREDICT, send_image, 200, "shop"),
            (PREDICT, register, 403, "shop"),
            (ADMIN, register, 201, "ops"),
            (OTHER, send_image, 200, "key [0-9a-f]{8}"),
            (UNKNOWN, send_image, 401, ""),
            *[(NEXT, send_image, 200, "shop")] * 2,
            (PREDICT, send_image, 429, "shop"),  # the limit is of the name
            (ADMIN, send_image, 200, "ops"),
        ):
            caplog.clear()
            assert ask(client, headers=bearing(key)).status_code == status
            assert key not in caplog.text
            logged_caller = vars(caplog.records[-1]).get("caller", "")
            assert re.fullmatch(caller, logged_caller)
            assert ("caller" in caplog.text) == bool(logged_caller)
