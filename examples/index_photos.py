"""Indexes photos by their labels in SQLite, with full-text search.

python examples/index_photos.py load tags photos.db           # results of `ml-decoder bulk`
python examples/index_photos.py index docs/photos photos.db   # or ask a running service
python examples/index_photos.py search photos.db cat sofa
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from ml_decoder_client import Answer, Client

_ENDINGS = {".jpg", ".jpeg", ".png", ".webp"}
_TABLES = """
CREATE TABLE IF NOT EXISTS photos (path TEXT PRIMARY KEY, error TEXT);
CREATE TABLE IF NOT EXISTS labels (path TEXT, label TEXT, score REAL, found INTEGER);
CREATE VIRTUAL TABLE IF NOT EXISTS names
    USING fts5(label, content='labels', content_rowid='rowid', tokenize='porter');
CREATE TRIGGER IF NOT EXISTS added AFTER INSERT ON labels
    BEGIN INSERT INTO names (rowid, label) VALUES (new.rowid, new.label); END;
"""
_SEARCH = """
SELECT path, MAX(score) FROM names JOIN labels ON labels.rowid = names.rowid
WHERE names MATCH ?1 AND CASE WHEN ?2 IS NULL THEN found ELSE score >= ?2 END GROUP BY path
"""


def index_photos(client: Client, folder: Path, database: Path) -> tuple[int, int]:
    """Adds the photos of a folder that are not there yet; returns numbers of added and failed."""
    with closing(_open(database)) as connection:
        known = {path for (path,) in connection.execute("SELECT path FROM photos")}
        files = (path for path in folder.rglob("*") if path.suffix.lower() in _ENDINGS)
        photos = sorted(path for path in files if str(path) not in known)
        failed = 0
        for path, answer in zip(photos, client.predict_many(photos), strict=True):
            labels = answer.labels if isinstance(answer, Answer) else []
            error = None if isinstance(answer, Answer) else str(answer)
            with connection:  # one transaction a photo: a run that is stopped continues
                _add(connection, path, error, map(vars, labels))
            failed += error is not None
    return len(photos) - failed, failed


def load_results(tags: Path, database: Path) -> tuple[int, int]:
    """Replaces the index by results of `ml-decoder bulk`; returns numbers of added and failed.

    Photos that no longer exist are left out.
    """
    from pyarrow import parquet

    folder = Path(json.loads((tags / "_bulk.json").read_text())["photos"])
    table = parquet.read_table(tags, columns=["photo", "error", "labels"])
    added = failed = 0
    with closing(_open(database)) as connection, connection:
        connection.execute("DELETE FROM photos")
        connection.execute("DELETE FROM labels")
        connection.execute("INSERT INTO names (names) VALUES ('delete-all')")
        for batch in table.to_batches(max_chunksize=100):
            rows = [row for row in batch.to_pylist() if (folder / row["photo"]).exists()]
            for row in rows:
                _add(connection, folder / row["photo"], row["error"], row["labels"] or ())
            failed += sum(row["error"] is not None for row in rows)
            added += len(rows)
    return added - failed, failed


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


def _open(database: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(database)
    connection.executescript(_TABLES)
    return connection


def _add(
    connection: sqlite3.Connection, path: Path, error: str | None, labels: Iterable[dict[str, Any]]
) -> None:
    connection.execute("INSERT INTO photos VALUES (?, ?)", (str(path), error))
    rows = [
        # Results of version 1.0 have no flag.
        (str(path), x["label"], x["score"], x.get("found", x["score"] >= x["threshold"]))
        for x in labels
    ]
    connection.executemany("INSERT INTO labels VALUES (?, ?, ?, ?)", rows)


def main() -> None:
    """Runs a command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://localhost:8000", help="address of the service")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("index", "load", "search"):
        command = commands.add_parser(name)
        if name != "search":
            command.add_argument("folder", type=Path)
        command.add_argument("database", type=Path)
    command.add_argument("words", nargs="+")
    command.add_argument("--least", type=float, help="lowest score, instead of found labels")
    given = parser.parse_args()
    if given.command == "search":
        results = search(given.database, given.words, given.least)
        if not (lines := [f"{score:.3f} {path}" for path, score in results]):
            sys.exit("no photo has these labels")
        print("\n".join(lines))
        return
    if given.command == "load":
        added, failed = load_results(given.folder, given.database)
    else:
        with Client(given.url) as client:
            added, failed = index_photos(client, given.folder, given.database)
    print(f"{added} photos added, {failed} failed")


if __name__ == "__main__":
    main()
