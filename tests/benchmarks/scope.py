"""What the default answer says of pictures that are not photos of scenes.

python -m tests.benchmarks.scope [--data FOLDER]

Products on white, icons, line drawings, scans and screenshots are rendered with Chromium, so the
right tags are known. `--data` is a labelled folder of photos, such as COCO's: a change that
prevents wrong tags on pictures must not cost right ones on photos.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path

import material
import numpy as np
import typer
from playwright.sync_api import sync_playwright

from models.data.labelled_folder import read_labelled_folder
from service.pipeline.pipeline import Pipeline, open_pipeline
from service.question import Question
from service.settings import Settings
from tests.benchmarks.servers import BUNDLE
from tests.browser.conftest import CHROMIUM
from tests.e2e.server_process import ROOT

COUNT = 30  # pictures of each kind
# Right tags, and half widths from the top to the foot of a round body.
_PRODUCTS = (
    ("bottle|water bottle|wine bottle|beer bottle", (1, 1, 1, 1.3, 2.7, 3, 3, 3, 3, 2.9)),
    ("vase|jar|pot", (2, 1.4, 1.3, 2, 3.2, 4, 4.2, 4, 3.2, 2.2)),
    ("bowl|mixing bowl", (6, 5.8, 5.2, 4.2, 2.4)),
    ("goblet|wine glass|glass", (3, 3.1, 3, 2.4, 0.6, 0.4, 0.4, 0.5, 2.4)),
    ("cup|glass|bucket|flowerpot|trash can", (3.2, 3.1, 3, 2.9, 2.8, 2.7, 2.6)),
)
_SHADES = """<linearGradient id="g"><stop stop-color="#0008"/><stop offset=".3" stop-color="#fff9"/>
<stop offset=".5" stop-color="#fff0"/><stop offset="1" stop-color="#000a"/></linearGradient>"""
# Threshold of a label by its own and the distance of the picture from photos.
_VARIANTS: dict[str, Callable[[float, float], float]] = {
    "as served": lambda own, _far: own,
    "no threshold below 0.3": lambda own, _far: max(own, 0.3),
    "raised if unlike photos": lambda own, far: own / (own + (1 - own) * np.exp(-far / 2)),
}


def draw_pictures(names: Sequence[str]) -> Iterator[tuple[str, str, set[str]]]:
    """Yields kind, HTML and right tags; `names` are the default labels, some with an icon."""
    icons = Path(material.__file__).parent / "templates" / ".icons" / "material"
    files = {name: icons / f"{name.replace(' ', '-')}.svg" for name in names}
    found = [name for name, file in files.items() if file.is_file()]
    texts = [path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))]
    style = (ROOT / "service" / "http" / "page" / "style.css").read_text()
    for number, name in enumerate(found[:: len(found) // COUNT][:COUNT]):
        right, widths = _PRODUCTS[number % len(_PRODUCTS)]
        colour = f"hsl({67 * number} 70% {20 + number}%)"
        steps = [(26 * width, 60 + 40 * step) for step, width in enumerate(widths)]
        sides = [(240 - x, y) for x, y in steps] + [(240 + x, y) for x, y in steps[::-1]]
        body = " ".join(f"{x},{y}" for x, y in sides)
        fills = "".join(f'<polygon points="{body}" fill="{fill}"/>' for fill in (colour, "url(#g)"))
        product = f'<svg width="480" height="480">{_SHADES}{fills}</svg>'
        yield "product", product, {*right.split("|")}
        # An icon of an alarm clock shows a clock too.
        words, icon = {*name.split()}, files[name].read_text()
        alike = {each for each in names if words <= {*each.split()} or words >= {*each.split()}}
        line = f"fill:none;stroke:{colour};stroke-width:.25"
        yield "icon", f"<style>svg{{padding:60px;fill:{colour}}}</style>{icon}", alike
        yield "drawing", f"<style>svg{{padding:60px;{line}}}</style>{icon}", alike
        text = escape(texts[number % len(texts)][40 * number :][:1800])
        font = "11px 'DejaVu Serif'" if number % 2 else "12px monospace"
        scan = f"rotate:{number % 5 - 2}deg;padding:40px;background:#f6f3e8;font:{font}"
        yield "scan", f'<pre style="{scan};white-space:pre-wrap">{text}', {"letter", "newspaper"}
        rows = "".join(f"<tr><td>{line[:50]}<td>{len(line)}" for line in text.split("\n"))
        head = f"<style>{style}</style><h1>{name}</h1><button>Open</button><input value='{name}'>"
        yield "screenshot", f"{head}<table>{rows}</table>", set()


def render(pages: Sequence[str]) -> list[bytes]:
    """Returns a JPEG of 480 x 480 pixels of each page."""
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"]) as browser,
    ):
        tab = browser.new_page(viewport={"width": 480, "height": 480}, color_scheme="light")
        return [(tab.set_content(page), tab.screenshot(type="jpeg"))[1] for page in pages]


async def ask(pipeline: Pipeline, contents: Sequence[bytes]) -> dict[str, list[set[str]]]:
    """Returns the labels of each picture's default answer that each variant keeps."""
    selection = await pipeline.select(Question(embedding=True))
    found = [await pipeline.predict(content, selection) for content in contents]
    whitening = pipeline.catalogue.whitening
    embeddings = np.array([each.embedding for each in found]), whitening.arrays["held_out"]
    far, usual = (np.linalg.norm(whitening.whiten(rows), axis=1) for rows in embeddings)
    rows = [*zip(found, (far - np.percentile(usual, 99)).clip(0), strict=True)]
    return {
        title: [{x.label for x in a.labels if x.score >= least(x.threshold, d)} for a, d in rows]
        for title, least in _VARIANTS.items()
    }


def report(title: str, tags: Sequence[set[str]], right: Sequence[set[str]]) -> None:
    given, hits = sum(map(len, tags)), sum(map(len, map(set.intersection, tags, right)))
    empty, recall = np.mean([not each for each in tags]), hits / max(1, sum(map(len, right)))
    row = f"{empty:7.2f} {given:5} {hits / max(given, 1):9.3f} {recall:6.3f}"
    print(f"{title:32} {len(tags):8} {row}")


async def measure(data: Path | None) -> None:
    """Prints a row for each kind of picture, and for each variant on all of them and on photos."""
    pipeline = open_pipeline(Settings(bundle=BUNDLE, device="cpu", label_store="memory"))
    await pipeline.start()
    names = [name for labels in (await pipeline.select(Question())).sets for name in labels.names]
    kinds, pages, right = zip(*draw_pictures(names), strict=True)
    tags = await ask(pipeline, await asyncio.to_thread(render, pages))
    print(f"{'':32} pictures  no tag  tags precision recall")
    for kind in dict.fromkeys(kinds):
        chosen = np.flatnonzero(np.array(kinds) == kind)
        report(kind, [tags["as served"][row] for row in chosen], [right[row] for row in chosen])
    for title, found in tags.items():
        report(title, found, right)
    wrong = Counter(tag for each in map(set.difference, tags["as served"], right) for tag in each)
    print("wrong:", wrong.most_common(9))
    if data is not None:
        folder = read_labelled_folder(data)
        images, counted = folder.split("test"), {*folder.label_names}.intersection(names)
        shown = [counted.intersection(image.labels) for image in images]
        tags = await ask(pipeline, [image.path.read_bytes() for image in images])
        for title, found in tags.items():
            report(f"{folder.name}: {title}", [each & counted for each in found], shown)
    await pipeline.drain()


def main(*, data: Path | None = None) -> None:
    """Prints the precision of the default answer, and what raised thresholds would change."""
    asyncio.run(measure(data))


if __name__ == "__main__":
    typer.run(main)
