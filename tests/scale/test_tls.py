"""The example of HTTPS in front of one service, run by a real nginx."""

import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import pytest

from tests.support import nginx
from tests.support.fake_service import FakeService, run_fake

HOST = "tags.example.org"
SITE = Path(__file__).parents[2] / "deploy" / "nginx" / "tls.conf"
# `openssl req` of docs/deploy-small.md.
OPENSSL = (
    *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30"),
    *("-subj", f"/CN={HOST}", "-addext", f"subjectAltName=DNS:{HOST}"),
)


@pytest.fixture(scope="module")
def service() -> Iterator[FakeService]:
    with run_fake() as (fake, _):
        yield fake


@pytest.fixture(scope="module")
def ports(
    service: FakeService, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[int, int, ssl.SSLContext]]:
    """The ports of HTTP and HTTPS, and a context that trusts the certificate."""
    folder = tmp_path_factory.mktemp("nginx")
    files = (f"{folder}/privkey.pem", f"{folder}/fullchain.pem")
    command = [*OPENSSL, "-keyout", files[0], "-out", files[1]]
    subprocess.run(command, check=True, capture_output=True)
    plain = nginx.find_free_port()

    def site(listen: str) -> str:
        text = SITE.read_text(encoding="utf-8")
        for ours, here in {
            "listen 443 ssl;": f"listen {listen} ssl;",
            "listen 80;": f"listen 127.0.0.1:{plain};",
            "/etc/nginx/tls": str(folder),
            "http://127.0.0.1:8000": f"http://127.0.0.1:{service.port}",
        }.items():
            assert ours in text
            text = text.replace(ours, here)
        return text

    with nginx.Nginx(folder, site) as running:
        yield plain, running.port, ssl.create_default_context(cafile=files[1])


@pytest.fixture
def client(ports: tuple[int, int, ssl.SSLContext]) -> Iterator[httpx.Client]:
    _, port, trusting = ports
    with httpx.Client(verify=trusting, base_url=f"https://127.0.0.1:{port}") as client:
        client.headers["Host"] = HOST
        yield client


def send(client: httpx.Client, path: str, body: bytes) -> httpx.Response:
    # The certificate is checked for the name of the site, not for the address.
    extensions = {"sni_hostname": HOST}
    return client.post(path, content=body, extensions=extensions)


def test_photo_of_20_mib_reaches_the_service_with_the_address_of_the_client(
    client: httpx.Client, service: FakeService
) -> None:
    service.requests.clear()
    client.headers |= {"X-Forwarded-For": "192.0.2.1", "X-Forwarded-Prefix": "/evil"}
    assert send(client, "/predict", bytes(20 * 1024**2)).status_code == 200
    ((method, path, headers),) = service.requests
    assert (method, path, headers["Host"]) == ("POST", "/predict", HOST)
    assert headers["X-Forwarded-For"] == "127.0.0.1"
    assert headers["X-Forwarded-Proto"] == "https"
    assert "X-Forwarded-Prefix" not in headers


@pytest.mark.parametrize("path", ["/metrics", "/tags/metrics", "/tags%2Fmetri%63s"])
def test_metrics_are_not_published(client: httpx.Client, path: str) -> None:
    assert send(client, path, b"").status_code == 404
    assert send(client, "/labels/metrics", b"").status_code == 200


def test_browsers_use_https_only_afterwards(client: httpx.Client) -> None:
    for path in ("/predict", "/metrics"):
        answer = send(client, path, b"")
        assert answer.headers["strict-transport-security"] == "max-age=31536000"


def test_plain_http_is_redirected_with_the_method_kept(
    ports: tuple[int, int, ssl.SSLContext],
) -> None:
    address = f"http://127.0.0.1:{ports[0]}/predict?top_k=3"
    for host in (HOST, "evil.example"):
        answer = httpx.post(address, headers={"Host": host}, content=b"photo")
        assert answer.status_code == 308
        assert answer.headers["location"] == f"https://{HOST}/predict?top_k=3"


def test_certificate_is_that_of_the_site_only(ports: tuple[int, int, ssl.SSLContext]) -> None:
    _, port, trusting = ports
    with httpx.Client(verify=trusting) as client, pytest.raises(httpx.ConnectError):
        client.get(f"https://127.0.0.1:{port}/")
