"""Indexes photos by their labels in SQLite, with full-text search.

python examples/index_photos.py load tags photos.db           # results of `ml-decoder bulk`
python examples/index_photos.py index docs/photos photos.db   # or ask a running service
python examples/index_photos.py search photos.db cat sofa
python examples/index_photos.py search photos.db --like docs/photos/chelsea.jpg
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import re
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from ml_decoder_client import Answer, Client, ClientError

_ENDINGS = {".jpg", ".jpeg", ".png", ".webp"}
_TABLES = """
CREATE TABLE IF NOT EXISTS photos (path TEXT PRIMARY KEY, error TEXT);
CREATE TABLE IF NOT EXISTS labels (path TEXT, label TEXT, score REAL, found INTEGER);
CREATE TABLE IF NOT EXISTS embeddings (path TEXT PRIMARY KEY, encoder TEXT, vector BLOB);
CREATE VIRTUAL TABLE IF NOT EXISTS words
    USING fts5(word, path UNINDEXED, score UNINDEXED, tokenize='porter');
CREATE VIRTUAL TABLE IF NOT EXISTS names
    USING fts5(label, content='labels', content_rowid='rowid', tokenize='porter');
CREATE TRIGGER IF NOT EXISTS added AFTER INSERT ON labels
    BEGIN INSERT INTO names (rowid, label) VALUES (new.rowid, new.label); END;
"""
_SEARCH = """
SELECT path, MAX(score) FROM (
    SELECT path, score, found FROM names JOIN labels ON labels.rowid = names.rowid
    WHERE names MATCH ?1 UNION ALL SELECT path, score, 1 FROM words WHERE words MATCH ?1
) WHERE CASE WHEN ?2 IS NULL THEN found ELSE score >= ?2 END GROUP BY path
"""


def index_photos(client: Client, folder: Path, database: Path) -> tuple[int, int]:
    """Adds the photos of a folder that are not there yet; returns numbers of added and failed."""
    with closing(_open(database)) as connection:
        known = {path for (path,) in connection.execute("SELECT path FROM photos")}
        files = (path for path in folder.rglob("*") if path.suffix.lower() in _ENDINGS)
        photos = sorted(path for path in files if str(path) not in known)
        failed = 0
        for path, answer in zip(photos, client.predict_many(photos, parents=True), strict=True):
            labels = answer.labels if isinstance(answer, Answer) else []
            error = None if isinstance(answer, Answer) else str(answer)
            with connection:  # one transaction a photo: a run that is stopped continues
                _add(connection, path, error, map(vars, labels), {})
            failed += error is not None
    return len(photos) - failed, failed


def load_results(tags: Path, database: Path) -> tuple[int, int]:
    """Replaces the index by results of `ml-decoder bulk`; returns numbers of added and failed.

    Photos that no longer exist are left out; if none exists, the index stays as it is.
    """
    begun = json.loads((tags / "_bulk.json").read_text())
    folder, encoder = Path(begun["photos"]), begun.get("encoder")
    if (folder / "_bulk.json").exists():  # of `bulk --from`: the results of an earlier run
        folder = Path(json.loads((folder / "_bulk.json").read_text())["photos"])
    file = tags / "_words.json"  # of versions from 1.2
    known = json.loads(file.read_text()) if file.exists() else {}
    if folder.is_file():  # a list of photos
        folder = folder.parent
    added = failed = gone = 0
    with closing(_open(database)) as connection, connection:
        for table in ("photos", "labels", "words", "embeddings"):
            connection.execute(f"DELETE FROM {table}")
        connection.execute("INSERT INTO names (names) VALUES ('delete-all')")
        for row in _read_rows(tags):
            path = folder / row["photo"]
            if not path.exists():
                gone += 1
                continue
            _add(connection, path, row["error"], row["labels"] or (), known)
            added += row["error"] is None
            failed += row["error"] is not None
            if row["vector"] is not None:
                values = (str(path), encoder, row["vector"].astype("<f4").tobytes())
                connection.execute("INSERT INTO embeddings VALUES (?, ?, ?)", values)
        if gone and not added + failed:
            sys.exit(f"none of the photos is in {folder}: if they moved, run bulk with --photos")
    return added, failed


def _read_rows(tags: Path) -> Iterator[dict[str, Any]]:
    """Yields the rows of results; `vector` is the embedding, float32 [D], or None."""
    from pyarrow import parquet

    for file in sorted(tags.glob("part-*.parquet")):
        for batch in parquet.ParquetFile(file).iter_batches(100):
            rows = batch.select(["photo", "error", "labels"]).to_pylist()
            vectors: Iterable[Any] = [None] * len(rows)
            if "embedding" in batch.schema.names:
                vectors = batch.column("embedding").to_numpy(zero_copy_only=False)
            yield from (row | {"vector": v} for row, v in zip(rows, vectors, strict=True))


def search(
    database: Path, words: Sequence[str], least: float | None = None
) -> Iterator[tuple[str, float]]:
    """Yields the photos whose labels have all words, and their lowest scores, best first.

    A label counts if its score reaches `least`; without one, if it was found.
    """
    with closing(_open(database)) as connection:
        quoted = ('"{}"'.format(word.replace('"', '""')) for word in words)
        by_word = [dict(connection.execute(_SEARCH, (word, least))) for word in quoted]
    photos = set.intersection(*map(set, by_word))
    scores = {path: min(photo_scores[path] for photo_scores in by_word) for path in photos}
    yield from sorted(scores.items(), key=lambda item: (-item[1], item[0]))


def search_alike(database: Path, like: str, count: int, url: str) -> list[tuple[float, str]]:
    """Returns the cosines and paths of the photos most like another one or a text, best first.

    An indexed photo needs no service; another photo is sent to it, and so is a text, which only
    CLIP and SigLIP take.
    """
    import numpy as np

    with closing(_open(database)) as connection:
        indexed = dict(connection.execute("SELECT path, encoder FROM embeddings"))
        if not indexed:
            sys.exit("the index has no embeddings: run bulk --embeddings, and load its results")
        real, name = os.path.realpath(like), os.path.basename(like)
        same = [path for path in indexed if os.path.basename(path) == name]
        known = next((path for path in same if os.path.realpath(path) == real), None)
        if known is None:
            query = _embed(like, min(indexed.values()), url)
        else:
            one = "SELECT vector FROM embeddings WHERE path = ?"
            (query,) = connection.execute(one, (known,)).fetchone()
        others = connection.execute(
            "SELECT path, vector FROM embeddings WHERE path IS NOT ?", (known,)
        )
        wanted = np.frombuffer(query, "<f4")
        cosines = ((float(np.frombuffer(row, "<f4") @ wanted), path) for path, row in others)
        return heapq.nlargest(count, cosines)


def _embed(like: str, encoder: str, url: str) -> bytes:
    import numpy as np

    is_photo = Path(like).is_file()
    if not is_photo and re.search(r"\.\w{3,4}$", like):  # rather a typing error than a text
        sys.exit(f"{like}: no such photo")
    try:
        with Client(url) as client:
            found = client.embed([like] * is_photo, [like] * (not is_photo))
    except ClientError as error:
        sys.exit(f"{like}: {error}")
    (answer,) = found.images + found.texts
    if answer.embedding is None:
        sys.exit(f"{like}: {(answer.error or {}).get('title')}")
    if found.encoder != encoder:
        sys.exit(
            f"the service at {url} has another model than the index: start it with that of bulk"
        )
    return np.array(answer.embedding, "<f4").tobytes()


def _open(database: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(database)
    connection.executescript(_TABLES)
    return connection


def _add(
    connection: sqlite3.Connection,
    path: Path,
    error: str | None,
    labels: Iterable[dict[str, Any]],
    known: dict[str, Any],
) -> None:
    """Adds a photo; `known` has parents and all names of labels and parents."""
    connection.execute("INSERT INTO photos VALUES (?, ?)", (str(path), error))
    for x in labels:
        # Results of version 1.0 have no flag.
        found = x.get("found", x["score"] >= x["threshold"])
        row = (str(path), x["label"], x["score"], found)
        connection.execute("INSERT INTO labels VALUES (?, ?, ?, ?)", row)
        parents = x.get("parents") or known.get(x["label"], {}).get("parents", ())
        words = {*parents, x.get("translation"), *(x.get("parent_translations") or ())} - {None}
        words.update(*(known[name]["names"] for name in (x["label"], *parents) if name in known))
        rows = [(word, str(path), x["score"]) for word in words if found]
        connection.executemany("INSERT INTO words VALUES (?, ?, ?)", rows)


def _print_results(given: argparse.Namespace) -> None:
    if given.like is None:
        results = search(given.database, given.words, given.least)
        lines = [f"{score:.3f} {path}" for path, score in results]
    else:
        alike = search_alike(given.database, given.like, given.count, given.url)
        lines = [f"{cosine:.3f} {path}" for cosine, path in alike]
    if not lines:
        sys.exit("no photo has these labels" if given.like is None else "no other photo is indexed")
    for line in lines:  # a file name may have characters that control a terminal
        print("".join(c if c.isprintable() else ascii(c)[1:-1] for c in line))


def main() -> None:
    """Runs a command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://localhost:8000", help="address of the service")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("index", "load", "search"):
        command = commands.add_parser(name)
        command.add_argument("--url", default=argparse.SUPPRESS, help="address of the service")
        if name != "search":
            command.add_argument("folder", type=Path)
        command.add_argument("database", type=Path)
    # With "*", argparse would not take words after an option.
    liked = any(word.startswith("--like") for word in sys.argv)
    command.add_argument("words", nargs="*" if liked else "+")
    command.add_argument("--like", metavar="PHOTO", help="photo, or text with CLIP and SigLIP")
    command.add_argument("--count", type=int, default=10, help="with --like: most photos")
    command.add_argument("--least", type=float, help="lowest score, instead of found labels")
    given = parser.parse_args()
    if given.command == "search":
        if given.like is not None and given.words:
            parser.error("search takes words or --like, not both")
        _print_results(given)
        return
    if given.command == "load":
        added, failed = load_results(given.folder, given.database)
    else:
        with Client(given.url) as client:
            added, failed = index_photos(client, given.folder, given.database)
    print(f"{added} photos added, {failed} failed")


if __name__ == "__main__":
    main()
