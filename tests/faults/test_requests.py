"""Unknown names in the query of a route change nothing."""

import httpx2 as httpx
import pytest

from tests.support.serving import assert_problem


@pytest.mark.parametrize(
    ("method", "path", "close"),
    [
        ("GET", "/labels?label_st=a", ""),
        ("POST", "/labels?name=a", ""),
        ("GET", "/labels/everyday?version=1", ""),
        ("PUT", "/labels/odd?if_version=1", ""),
        ("PATCH", "/labels/odd?label=a", ""),
        ("DELETE", "/labels/odd?nmae=a", ""),
        ("POST", "/labels/odd/calibrate?label=a&precision_taget=1", "'precision_target'"),
        ("GET", "/info?verbose", ""),
    ],
)
def test_unknown_name_in_the_query_is_refused(
    client: httpx.Client, method: str, path: str, close: str
) -> None:
    client.put("/labels/odd", json={"labels": ["yak"]}).raise_for_status()
    (value,) = assert_problem(client.request(method, path), 422, "invalid_parameters")["errors"]
    assert value["name"] == path.partition("?")[2].split("&")[-1].partition("=")[0]
    assert "unknown" in value["reason"]
    assert close in value["reason"]
    assert client.get("/labels/odd").status_code == 200
