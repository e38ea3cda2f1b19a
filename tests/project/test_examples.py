"""The programs of `examples/` do what their first lines say."""

import asyncio
import base64
import importlib.util
import json
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.bundle.reader import load_bundle
from service.cli.bulk.parts import ENCODER, open_parts
from tests.e2e.server_process import ROOT, ServerProcess
from tests.service.cli.bulk.test_parts import LABEL, QUESTION, record
from tests.support.fake_service import ANSWER, run_fake
from tests.support.photos import make_photo

NOTHING = "no photo has these labels"
CONFIG = """<View><Image name="photo" value="$image"/><Choices name="tags" toName="photo"
 choice="multiple"><Choice value="cup"/><Choice value="our cat"/></Choices></View>"""


def load_example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def find_label(label: str, score: float, **words: Any) -> dict[str, Any]:
    answered = {"label": label, "score": score, "threshold": 0.5, "source": "trained", **words}
    return {**ANSWER, "labels": [{**answered, "calibrated": True}]}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs an example with arguments; returns what it prints, or why it exits."""

    def run_main(name: str, *arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        try:
            load_example(name).main()
        except SystemExit as stopped:
            return str(stopped.code)
        return capsys.readouterr().out

    return run_main


def test_photos_are_indexed_once_and_found_by_label(run: Any, tmp_path: Path) -> None:
    for name in ("a.jpg", "sea/b.PNG"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(make_photo())
    database = tmp_path / "photos.db"
    with run_fake() as (service, url):
        words = {
            "translation": "Katze",
            "parents": ["mammal"],
            "parent_translations": ["Säugetier"],
        }
        service.set_answer(find_label("cat", 0.9, **words))
        index = ("index_photos", "--url", url, "index", tmp_path, database)
        assert run(*index) == "2 photos added, 0 failed\n"
        assert run(*index) == "0 photos added, 0 failed\n"
        (tmp_path / "c.jpg").write_bytes(b"junk")
        service.answers = [(400, {})]
        assert run(*index) == "0 photos added, 1 failed\n"
    for word in ("cat", "mammals", "katze", "säugetier"):
        lines = run("index_photos", "search", database, word).splitlines()
        assert lines == [f"0.900 {tmp_path / name}" for name in ("a.jpg", "sea/b.PNG")]
    assert run("index_photos", "search", database, "dog") == NOTHING


def test_results_of_bulk_replace_the_index_and_are_searched_by_words(
    run: Any, tmp_path: Path
) -> None:
    photos, tags, database = (tmp_path / name for name in ("photos", "tags", "photos.db"))
    photos.mkdir()
    (photos / "a.jpg").touch()
    (photos / "bad.jpg").touch()
    row = record("a.jpg")
    scores = {"cat": 0.9, "cup of coffee": 0.7, "red pandas": 0.2}
    row["labels"] = [LABEL | {"label": name, "score": score} for name, score in scores.items()]
    with open_parts(str(tags), QUESTION | {"photos": str(photos)}) as parts:
        parts.write([row, record("gone.jpg"), record("bad.jpg", error="broken")])
    load = ("index_photos", "load", tags, database)
    assert run(*load) == "1 photos added, 1 failed\n"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("DROP TABLE words")  # as of version 1.1
    assert run("index_photos", "search", database, "cat").startswith("0.900")
    known = {"cat": {"parents": ["animal"], "names": ["cat", "Katze", "gatto"]}}
    known |= {"animal": {"names": ["animal", "Tier"]}}
    known |= {"red pandas": {"parents": ["bear"], "names": ["Panda"]}}
    (tags / "_words.json").write_text(json.dumps(known))
    assert run(*load) == "1 photos added, 1 failed\n"
    searches = {"cats": "0.900", "coffee CAT": "0.700", "panda cat --least 0.1": "0.200"}
    searches |= {
        "animals tier": "0.900",
        "gatto katze": "0.900",
        "animal coffee --least 0.1": "0.700",
    }
    for words, score in searches.items():
        printed = run("index_photos", "search", database, *words.split())
        assert printed == f"{score} {photos / 'a.jpg'}\n"
    assert run("index_photos", "search", database, "cup of coffee").startswith("0.700 ")
    for word in ("red panda", "dog", "gone", 'c" OR "cat', "bear"):
        assert run("index_photos", "search", database, "cat", word) == NOTHING
    photos.rename(tmp_path / "moved")
    reason = f"none of the photos is in {photos}: if they moved, run bulk with --photos"
    assert run("index_photos", "load", tags, database) == reason
    assert run("index_photos", "search", database, "cat") == f"0.900 {photos / 'a.jpg'}\n"
    moved = {"photos": str(tags)}  # of `bulk --from`
    with open_parts(str(tmp_path / "answers"), QUESTION | moved) as parts:
        parts.write([row])
    (tmp_path / "moved").rename(photos)
    load = ("load", tmp_path / "answers", database)
    assert run("index_photos", *load) == "1 photos added, 0 failed\n"


def test_photos_like_a_photo_or_text_are_found_by_their_embeddings(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    vectors = {"a.jpg": [1, 0], "b.jpg": [0.8, 0.6], "c.jpg": [0, 1], "bad.jpg": None}
    rows = [record(name, error=None if vector else "broken") for name, vector in vectors.items()]
    Path("list.txt").write_text("\n".join(vectors))
    question = QUESTION | {"photos": str(tmp_path / "list.txt"), ENCODER: "e1"}
    with open_parts("tags", question) as parts:
        parts.write([x | {"embedding": vectors[x["photo"]]} for x in rows])
    for name in (*vectors, "new.jpg"):
        Path(name).touch()
    like = ("index_photos", "search", "photos.db", "--like")
    assert run(*like, "a.jpg").startswith("the index has no embeddings: run bulk --embeddings")
    assert run("index_photos", "load", "tags", "photos.db") == "3 photos added, 1 failed\n"
    alike = f"0.800 {tmp_path}/b.jpg\n0.000 {tmp_path}/c.jpg\n"
    assert run(*like, "./a.jpg") == alike
    with run_fake() as (service, url):
        found = {
            "model": ANSWER["model"],
            "width": 2,
            "images": [],
            "texts": [{"embedding": [0, 1]}],
        }
        like = ("index_photos", "--url", url, *like[1:])
        service.set_answer(found | {"encoder": "e1"})
        for text in ("a red cup", "new.jpg"):
            assert run(*like, text, "--count", "1") == f"1.000 {tmp_path}/c.jpg\n"
        assert b"a red cup" in service.bodies.get()
        assert run(*like, "missing.jpg") == "missing.jpg: no such photo"
        service.set_answer(found | {"encoder": "e2"})
        assert run(*like, "a red cup").startswith(f"the service at {url} has another model")
        assert run(*like, "c.jpg", "--count", "1").startswith("0.600 ")


def test_app_tags_uploads(monkeypatch: pytest.MonkeyPatch) -> None:
    with run_fake() as (service, url):
        monkeypatch.setenv("SERVICE_URL", url)
        with TestClient(load_example("tag_uploads").app) as client:
            for name, score in (("a", 0.7), ("b", 0.8)):
                service.set_answer(find_label("cat", score))
                assert client.put(f"/photos/{name}", content=b"photo").json() == {"cat": score}
            assert client.get("/photos?label=cat").json() == ["b", "a"]
            for status, code, expected in ((400, "invalid_image", 422), (401, "", 502)):
                service.set_answer({"title": "No", "code": code}, status)
                assert client.put("/photos/c", content=b"photo").status_code == expected
            large = iter([bytes(2**20)] * 21)  # without a Content-Length
            assert client.put("/photos/c", content=large).status_code == 413
            service.set_answer(find_label("cat", 0.9))
            assert client.put("/photos/c", content=bytes(2**20)).status_code == 201


def test_head_is_trained_and_exported(tmp_path: Path) -> None:
    bundle = load_bundle(load_example("train_head").main(tmp_path))
    assert [label.name for label in bundle.labels] == ["red", "green", "blue"]
    (metric,) = (each for each in bundle.card.metrics if each.name == "mAP")
    assert metric.value > 80


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    command = ("serve", "--port", "0", "--device", "cpu", "--label-store", "memory")
    with ServerProcess(*command) as server:
        with server.open_client() as client:
            address = str(client.base_url)
        yield address


def test_label_studio_predicts_choices_and_learns_from_annotations(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_URL", url)
    backend = load_example("label_studio")
    cat = (ROOT / "docs" / "photos" / "chelsea.jpg").read_bytes()
    data = f"data:image/jpeg;base64,{base64.b64encode(cat).decode()}"
    with closing(backend.client), TestClient(backend.app) as client, run_fake() as (studio, place):
        backend.STUDIO, backend.TOKEN = f"{place}/", "a.b.c"
        backend.studio.base_url = place

        def post(path: str, **body: Any) -> Any:
            return client.post(path, json={"project": "7.1"} | body).raise_for_status().json()

        def predict(*photos: str) -> Any:
            tasks = [{"data": {"image": photo}} for photo in photos]
            return post("/predict", label_config=CONFIG, tasks=tasks)["results"]

        def annotate(choice: str, *, skipped: bool = False) -> None:
            result = [{"from_name": "tags", "value": {"choices": [choice]}}]
            task, project = {"data": {"image": data}}, {"id": 7, "label_config": CONFIG}
            annotation = {"result": result, "was_cancelled": skipped}
            body = {"task": task, "project": project, "annotation": annotation}
            post("/webhook", action="ANNOTATION_CREATED", **body)

        version = post("/setup", schema=CONFIG)["model_version"]
        studio.body = b'{"access": "t"}'  # no photo
        assert predict("/a.jpg", "http://127.0.0.2/a.jpg", "//example.org/a", "data:,x") == [[]] * 4
        sent = [(path, headers.get("Authorization")) for _, path, headers in studio.requests]
        assert sent == [("/api/token/refresh", None), ("/a.jpg", "Bearer t")]
        backend.TOKEN, studio.body = "legacy", cat
        ((before,),) = predict("/a.jpg")
        assert studio.requests[-1][2]["Authorization"] == "Token legacy"
        annotate("our cat", skipped=True)
        assert predict(data) == [[before]]
        for choices in (["our cat"], ["our cat", "cup"]):  # the first stays an example
            annotate(choices[-1])
            ((after,),) = predict(data)
            assert {*after["result"][0]["value"]["choices"]} == {*choices}
        assert before["model_version"] == version != post("/setup", schema=CONFIG)["model_version"]
        backend.studio.close()


def test_agent_tags_and_teaches_over_stdio(url: str) -> None:
    mcp = pytest.importorskip("mcp", reason="the package mcp is not installed")
    program, photo = f"{ROOT}/examples/mcp_server.py", f"{ROOT}/docs/photos/coffee.jpg"
    environment = {"SERVICE_URL": url, "PYTHONPATH": ":".join(sys.path)}

    async def talk(*calls: tuple[str, dict[str, Any]]) -> list[Any]:
        server = mcp.StdioServerParameters(command=sys.executable, args=[program], env=environment)
        async with mcp.Client(server) as client:
            return [await client.call_tool(*call) for call in calls]

    teach = {"label": "mug", "photos": [photo], "others": [], "label_set": "desk"}
    words = {"path": photo, "words": ["cup of coffee", "zebra"]}
    calls = ("tag_photo", {"path": program}), ("list_labels", {}), ("teach_label", teach)
    calls += ("tag_photo", {"path": photo, "label_sets": ["desk"]}), ("tag_photo", words)
    broken, sets, _, taught, asked = asyncio.run(talk(*calls))
    assert "is not an image" in broken.content[0].text
    assert {"trained", "everyday"} <= {*sets.structured_content["result"]}
    assert [*taught.structured_content] == ["mug"]
    assert [*asked.structured_content] == ["cup of coffee", "zebra"]
