"""`ml-decoder get` from a hub and from a folder of random weights to the README's first request."""

from pathlib import Path

import pytest

from service.bundle.reader import load_bundle
from service.cli.get import MODELS
from tests.e2e.server_process import ServerProcess, serve_command
from tests.models.tiny_towers import write_towers
from tests.service.cli.conftest import Run, run  # noqa: F401 - a fixture
from tests.support.fake_hub import serve_hub
from tests.support.photos import make_photo
from tests.support.serving import send_image


def test_model_of_the_hub_is_served(
    run: Run,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, online = tmp_path / "strong", tmp_path / "online"
    folder = write_towers(tmp_path / "hub", "siglip")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    with serve_hub(folder) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        assert run("get", "siglip2-base", "--out", online)[0] == 0
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert run("get", "siglip2-base", "--out", out)[0] == 0, "the cache is enough"
    bundle = load_bundle(out)
    assert bundle.card.provenance.training_data == MODELS["siglip2-base"].hub
    with ServerProcess(*serve_command(bundle)) as server, server.open_client() as client:
        answer = send_image(client, make_photo()).json()
        assert (answer["label_set"]["name"], len(answer["labels"])) == ("everyday", 5)
        assert {each["calibrated"] for each in answer["labels"]} == {False}
        assert client.get("/").status_code == 200
