"""`ml-decoder get` of look-alikes from a hub and from folders has the scores of transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from service.bundle.card import write_prompt
from service.bundle.reader import Bundle, load_bundle
from service.engine.devices import multiplies_int8
from service.images.decode import decode_image
from service.labels.encoders import open_text_encoder
from service.labels.whitening import MIN_PHOTOS
from tests.e2e.server_process import ServerProcess, serve_command
from tests.models.onnx_repository import write_onnx_repository
from tests.models.tiny_towers import KINDS, MAX_TOKENS, run_transformers, write_towers
from tests.service.cli.conftest import Run, run, run_without  # noqa: F401 - `run` is a fixture
from tests.support.fake_hub import COMMIT, serve_hub
from tests.support.photos import make_photo, write_photos
from tests.support.serving import labels_of, send_examples, send_image, serve_app

LABELS = ["dog", "fire_hydrant", "x", "x" * 20]
LARGEST = {"": 1e-4, "_fp16": 0.005, "_quantized": 0.05}
"""Differences of scores by variant; int8 costs random weights more than learnt ones."""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of transformers."""
    folder = tmp_path_factory.mktemp("torch")
    return {kind: write_towers(folder / kind, kind) for kind in KINDS}


def check_scores(client: Any, bundle: Bundle, source: Path, largest: float) -> None:
    """Compares with transformers on the service's own pixels."""
    spec, head = bundle.card.input, bundle.card.open_head
    assert head is not None
    texts = [write_prompt(head.embedding_space.template, name) for name in LABELS]
    for photo in (make_photo(1, width=24), make_photo(2)):
        pixels = decode_image(photo, spec, 10**6).pixels / 255
        values = torch.from_numpy(((pixels - spec.mean) / spec.std).transpose(2, 0, 1)[None])
        (logits,) = run_transformers(source, values.float(), texts)
        scores = logits.softmax(0) if source.name == "clip" else logits.sigmoid()
        expected = dict(zip(LABELS, scores.tolist(), strict=True))
        answer = send_image(client, photo, params={"candidate_labels": LABELS, "top_k": 9})
        assert dict(labels_of(answer)) == pytest.approx(expected, abs=largest)


@torch.inference_mode()
def check_texts(bundle: Bundle, source: Path) -> None:
    """Compares embeddings of texts of all lengths, together and one by one."""
    texts = ["a" * count for count in range(1, MAX_TOKENS[source.name] + 3)] + ["Ein Kuchen!", "犬"]
    model, limit = AutoModel.from_pretrained(source).eval(), MAX_TOKENS[source.name]
    tokens = AutoTokenizer.from_pretrained(source)(
        texts, truncation=True, max_length=limit, padding="max_length", return_tensors="pt"
    )
    pooled = model.text_model(input_ids=tokens["input_ids"]).pooler_output
    pooled = model.text_projection(pooled) if source.name == "clip" else pooled
    expected = torch.nn.functional.normalize(pooled, dim=1).numpy()
    encoder = open_text_encoder(bundle, threads=1)
    assert encoder is not None
    alone = np.concatenate([encoder.encode([text]) for text in texts])
    np.testing.assert_allclose([encoder.encode(texts), alone], [expected] * 2, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "precision", "options"),
    [
        *((f"hf-hub:test/{kind}", each, {}) for kind in KINDS for each in ("fp32", "int8")),
        ("siglip2-base", "fp32", {"any_side": True, "without": ["config.json"]}),
        ("hf-hub:test/siglip", "fp32", {"external": True}),
        ("siglip2-large", "fp32", {"opset": 20, "length": 64, "whole": True}),
        ("siglip2-base", "fp32", {"opset": 17, "mask": True}),
        ("siglip2-base", "fp16", {"variants": ["_fp16"]}),
        ("siglip2-base", "int8", {"without": ["onnx/vision_model.onnx", "onnx/text_model.onnx"]}),
        ("clip-vit-b-32", "fp32", {"opset": 11, "without": ["tokenizer_config.json"]}),
        ("clip-vit-l-14", "fp16", {"variants": [], "mask": True, "length": 40}),
    ],
)
def test_look_alike_is_served_with_the_scores_of_transformers(  # noqa: PLR0913, PLR0917
    run: Run, sources: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,  # noqa: F811
    name: str, precision: str, options: dict[str, Any],
) -> None:  # fmt: skip
    source = sources["clip" if "clip" in name else "siglip"]
    folder = write_onnx_repository(tmp_path / "hub/test" / source.name, source, **options)
    out, given = tmp_path / "b", () if name.startswith("hf-hub:") else ("--from", folder)
    with serve_hub(tmp_path / "hub") as hub:
        hub.use(monkeypatch, tmp_path / "cache")
        code, said, error = run("get", name, *given, "--out", out, "--precision", precision)
    assert (code, said) == (0, f"ml-decoder serve --bundle {out}\n"), error
    bundle = load_bundle(out)
    provenance = bundle.card.provenance
    suffix = next(key for key in provenance.files if "vision" in key)[17:-5]
    exact = suffix == "_quantized" and not multiplies_int8()  # texts are encoded on the CPU
    graphs = {f"vision_model{suffix}.onnx", f"text_model{'' if exact else suffix}.onnx"}
    assert {each for each in hub.sent if each.endswith(".onnx")} == (set() if given else graphs)
    assert provenance.revision == (None if given else COMMIT)
    with serve_app(out) as client:
        check_scores(client, bundle, source, LARGEST[suffix])
    if not suffix:
        check_texts(bundle, source)


def test_model_without_torch_is_served_and_learns_from_photos(
    sources: dict[str, Path], tmp_path: Path
) -> None:
    folder, out = write_onnx_repository(tmp_path / "hub", sources["siglip"]), tmp_path / "b"
    photos = [path.read_bytes() for path in write_photos(tmp_path / "photos", MIN_PHOTOS)]
    given = f"--from={folder}", f"--background={tmp_path / 'photos'}", "--precision=fp32"
    absent = ["torch", "timm", "transformers", "safetensors", "torchvision"]
    done = run_without(absent, ["get", "siglip2-base", *given, f"--out={out}"])
    assert done.returncode == 0, done.stderr
    command = serve_command(out, "--label-store", "memory")
    with ServerProcess(*command) as server, server.open_client() as client:
        check_scores(client, load_bundle(out), sources["siglip"], LARGEST[""])
        answer = send_image(client).json()
        assert (answer["label_set"]["name"], len(answer["labels"])) == ("everyday", 5)
        learnt = send_examples(client, "/labels/mine/examples?label=mug", photos[:3])
        assert learnt.status_code == 201, learnt.text
        answer = send_image(client, photos[0], params={"label_set": "mine", "top_k": 1}).json()
        assert answer["labels"][0]["source"] == "examples"
        assert client.get("/").status_code == 200
