from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from export.accuracy.accuracy import measure_map, predict_logits
from export.graphs.graph import Graphs
from export.int8 import judge
from export.int8.judge import choose_judge
from export.sources.photos import LabelledPhotos, read_splits
from export.sources.trained import Source, SourceHints, read_source
from tests.export.tiny_network import LABELS


@pytest.fixture(scope="module")
def source(checkpoint: Path) -> Source:
    return read_source(SourceHints(checkpoint))


@pytest.fixture(scope="module")
def photos(folder: Path) -> LabelledPhotos:
    return read_splits(folder, LABELS).val


def shift_logits(graphs: Graphs, share: float) -> Graphs:
    """Multiplies what the head gives by 1 + share: the same order of photos, other logits."""
    head = onnx.ModelProto()
    head.CopyFrom(graphs["trained_head"])
    factor = numpy_helper.from_array(np.array(1 + share, np.float32), "factor")
    head.graph.initializer.append(factor)
    last = next(node for node in head.graph.node if "logits" in node.output)
    last.output[list(last.output).index("logits")] = "exact"
    head.graph.node.append(onnx.helper.make_node("Mul", ["exact", "factor"], ["logits"]))
    return {**graphs, "trained_head": head}


def tenth(source: Source, graphs: Graphs, photos: LabelledPhotos) -> float:
    """Returns the share by which logits may be multiplied for a deviation of a tenth."""
    logits = predict_logits(graphs, photos, source.contract)
    return 0.1 * float(np.linalg.norm(logits - logits.mean(axis=0)) / np.linalg.norm(logits))


def test_few_photos_do_not_prove_by_their_map_that_int8_loses_nothing(
    source: Source, graphs: Graphs, photos: LabelledPhotos
) -> None:
    judged = choose_judge(graphs, source, photos)
    limit = tenth(source, graphs, photos)
    # The order of the photos, and so their mAP, is the same in both.
    assert judged.measure_loss(shift_logits(graphs, 1.05 * limit)) > judged.limit
    assert judged.measure_loss(shift_logits(graphs, 0.95 * limit)) < judged.limit
    assert judged.aim == judged.limit


def test_map_judges_where_photos_show_labels_enough(
    source: Source, graphs: Graphs, photos: LabelledPhotos, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = int(photos.targets.sum())
    monkeypatch.setattr(judge, "MIN_SHOWN", shown)
    judged = choose_judge(graphs, source, photos)
    assert (judged.aim, judged.limit) == (0.25, 0.5)
    assert judged.measure_loss(shift_logits(graphs, 0.5)) == 0.0
    logits = predict_logits(graphs, photos, source.contract)
    forwards, backwards = (measure_map(f * logits, photos, "sigmoid") for f in (1, -1))
    loss = judged.measure_loss(shift_logits(graphs, -2.0))  # the order reversed
    assert loss == pytest.approx(forwards - backwards)
    assert abs(loss) > judged.limit
    monkeypatch.setattr(judge, "MIN_SHOWN", shown + 1)
    assert choose_judge(graphs, source, photos).limit == -20.0


def test_a_label_that_all_photos_show_proves_nothing(
    source: Source, graphs: Graphs, photos: LabelledPhotos, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = photos.targets.copy()
    targets[:, 0] = 1
    monkeypatch.setattr(judge, "MIN_SHOWN", int(targets[:, 1:].sum()) + 1)
    assert choose_judge(graphs, source, replace(photos, targets=targets)).limit == -20.0


def test_story_tells_what_int8_is_judged_by(
    source: Source, graphs: Graphs, photos: LabelledPhotos, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="export"):
        choose_judge(graphs, source, photos).measure_loss(shift_logits(graphs, 0.5))
    shown = photos.targets.sum()
    assert f"colours/val shows {shown} labels, mAP needs 1000" in caplog.text
    assert "above their deviation from fp32 on colours/val, 20 are needed" in caplog.text
