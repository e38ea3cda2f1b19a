"""A real server below a path of a real nginx, by the setting or by the header of the proxy."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urljoin

import httpx2 as httpx
import pytest

from service.bundle.reader import Bundle
from service.errors import StartError
from service.http.app import create_app
from service.pipeline.served import ServedPipeline
from service.settings import Settings
from tests.e2e.server_process import ServerProcess, serve_command
from tests.support import nginx
from tests.support.serving import assert_problem, assert_still_serving

GUIDE = Path(__file__).parents[2] / "docs" / "operate.md"
PREFIX = "/team-1/tags"


# Whether the proxy removes the path and names it in a header, and whether the service is set to it.
KINDS = {
    "strips, set": (True, False, True),
    "keeps and names": (False, True, False),
    "keeps, set": (False, False, True),
    "strips and names, set too": (True, True, True),
}
INVALID = [
    *("team", "//evil.example", "/a//b", "/..", "/a/../b", "/.", "/a/.", "https://evil.example/a"),
    *('/"><script>alert(1)</script>', "/a b", "/a\tb", "/a?b", "/a#b", "/%2f%2fevil", "/\\evil"),
    *("/a;b", "/@evil", "/ä", "/" + "x" * 200, "/a, //b", "/a,b"),
]


@pytest.fixture(scope="module")
def servers(open_bundle: Bundle) -> Iterator[dict[bool, ServerProcess]]:
    """Servers without and with the setting."""
    command = serve_command(open_bundle, "--label-store", "memory")
    with (
        ServerProcess(*command) as plain,
        ServerProcess(*command, "--root-path", f"{PREFIX}/") as below,
    ):
        for server in (plain, below):
            server.open_client().close()
        yield {False: plain, True: below}


@pytest.fixture(scope="module", params=[*KINDS, "as documented"])
def proxy(
    request: pytest.FixtureRequest,
    servers: dict[bool, ServerProcess],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[httpx.Client]:
    strips, names_it, is_set = KINDS.get(request.param, (True, True, False))
    _, port = servers[is_set].find_address()
    site = nginx.prefix_site(PREFIX, port, strips=strips, names_it=names_it)
    if request.param not in KINDS:
        site = documented_site(port)
    with nginx.Nginx(tmp_path_factory.mktemp("nginx"), site) as running:
        url = f"http://127.0.0.1:{running.port}{PREFIX}"
        with httpx.Client(base_url=url, follow_redirects=True) as client:
            yield client
            assert_still_serving(client)


def documented_site(port: int) -> Callable[[str], str]:
    """Returns the site of the guide, for this server and prefix."""
    (block,) = re.findall(r"```nginx\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    location = block.replace("8000", str(port)).replace("/tags", PREFIX)
    return lambda listen: f"server {{ listen {listen}; {location} }}"


@pytest.mark.parametrize("page", ["", "/docs"])
def test_page_loads_its_files_below_the_prefix(proxy: httpx.Client, page: str) -> None:
    url = str(proxy.base_url).rstrip("/") + page
    response = proxy.get(url)
    assert response.status_code == 200, response.text
    assert response.headers["content-security-policy"]
    (base,) = re.findall(r'<base href="([^"]+)">', response.text)
    assert base == f"{PREFIX}/"
    files = re.findall(r'<(?:script|link)[^>]+(?:src|href)="([^"]+)"', response.text)
    assert len(files) > 1
    for each in files:
        assert proxy.get(urljoin(urljoin(url, base), each)).status_code == 200, each


def test_new_label_set_is_found_at_its_location(proxy: httpx.Client) -> None:
    made = proxy.put("/labels/zoo", json={"labels": ["panda"]})
    assert (made.status_code, made.headers["location"]) == (201, f"{PREFIX}/labels/zoo")
    answer = proxy.get(urljoin(str(made.url), made.headers["location"]))
    assert [label["name"] for label in answer.json()["labels"]] == ["panda"]
    assert proxy.delete("/labels/zoo").status_code == 204
    assert proxy.get("/openapi.json").json()["servers"] == [{"url": PREFIX}]


def test_errors_below_the_prefix_have_the_form_of_their_route(proxy: httpx.Client) -> None:
    assert_problem(proxy.post("/predict"), 422, "missing_field")
    assert_problem(proxy.get("/nowhere"), 404, "not_found")
    refused = proxy.get("/predict")
    assert_problem(refused, 405, "method_not_allowed")
    assert refused.headers["allow"] == "POST"
    assert list(proxy.get("/v2/models/other").json()) == ["error"]


@pytest.mark.parametrize("proxy", ["as documented"], indirect=True)
def test_documented_site_hides_the_metrics(proxy: httpx.Client) -> None:
    assert proxy.get("/metrics").status_code == 404


@pytest.mark.parametrize("is_set", [False, True])
def test_invalid_prefix_of_a_trusted_proxy_is_ignored(
    servers: dict[bool, ServerProcess], is_set: bool
) -> None:
    with servers[is_set].open_client() as client:
        for prefix in INVALID:
            assert_prefix(client, prefix, PREFIX if is_set else "")


def test_prefix_of_a_trusted_proxy_is_read(servers: dict[bool, ServerProcess]) -> None:
    named = {"/a/": "/a", "/a, /b/c": "/a/b/c", "/": "", "": "", "/a.b_c~d-1": "/a.b_c~d-1"}
    with servers[False].open_client() as client:
        for given, prefix in named.items():
            assert_prefix(client, given, prefix)
        made = client.put("/labels/zoo", json={"labels": ["panda"]})
        assert made.headers["location"] == "/a.b_c~d-1/labels/zoo"
        assert client.delete("/labels/zoo").status_code == 204


def test_prefix_of_another_client_changes_nothing(open_bundle: Bundle) -> None:
    command = serve_command(open_bundle, "--label-store", "memory")
    with (
        ServerProcess(*command, FORWARDED_ALLOW_IPS="192.0.2.1") as server,
        server.open_client() as client,
    ):
        assert_prefix(client, "/evil", "")


@pytest.mark.parametrize("prefix", ["tags", "//evil", "/a b", "/é", "/a//"])
def test_invalid_root_path_is_refused(prefix: str) -> None:
    with pytest.raises(StartError, match="root_path must be a path such as /tags"):
        create_app(ServedPipeline(Settings(root_path=prefix)))


def assert_prefix(client: httpx.Client, named: str, prefix: str) -> None:
    """Checks which prefix is in the answers to requests whose header names one."""
    client.headers = httpx.Headers([(b"X-Forwarded-Prefix", named.encode("latin-1"))])
    page = client.get("/").text
    assert re.findall("<base.*", page) == ([f'<base href="{prefix}/">'] if prefix else []), named
    servers = client.get("/openapi.json").json().get("servers")
    assert servers == ([{"url": prefix}] if prefix else None), named
