"""Indexes a folder of photos in SQLite, and searches it by label. Needs a running service.

python examples/index_photos.py index docs/photos photos.db
python examples/index_photos.py search photos.db cat
"""

from __future__ import annotations

import argparse
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from ml_decoder_client import Answer, Client

_ENDINGS = {".jpg", ".jpeg", ".png", ".webp"}
_TABLES = """
CREATE TABLE IF NOT EXISTS photos (path TEXT PRIMARY KEY, error TEXT);
CREATE TABLE IF NOT EXISTS labels (path TEXT, label TEXT, score REAL, PRIMARY KEY (path, label));
CREATE INDEX IF NOT EXISTS by_label ON labels (label, score);
"""


def index_photos(client: Client, folder: Path, database: Path) -> tuple[int, int]:
    """Adds the photos of a folder that are not there yet; returns numbers of added and failed."""
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(_TABLES)
        known = {path for (path,) in connection.execute("SELECT path FROM photos")}
        found = (path for path in folder.rglob("*") if path.suffix.lower() in _ENDINGS)
        photos = sorted(path for path in found if str(path) not in known)
        failed = 0
        for path, answer in zip(photos, client.predict_many(photos), strict=True):
            with connection:  # one transaction a photo: a run that is stopped continues
                labels = answer.labels if isinstance(answer, Answer) else []
                error = None if isinstance(answer, Answer) else str(answer)
                connection.execute("INSERT INTO photos VALUES (?, ?)", (str(path), error))
                rows = [(str(path), found.label, found.score) for found in labels]
                connection.executemany("INSERT INTO labels VALUES (?, ?, ?)", rows)
            failed += error is not None
    return len(photos) - failed, failed


def search(database: Path, label: str) -> Iterator[tuple[str, float]]:
    """Yields the photos with a label and their scores, best first."""
    query = "SELECT path, score FROM labels WHERE label = ? ORDER BY score DESC, path"
    with closing(sqlite3.connect(database)) as connection:
        yield from connection.execute(query, (label,))


def main() -> None:
    """Runs a command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://localhost:8000", help="address of the service")
    commands = parser.add_subparsers(dest="command", required=True)
    indexing, searching = commands.add_parser("index"), commands.add_parser("search")
    indexing.add_argument("folder", type=Path)
    for command in (indexing, searching):
        command.add_argument("database", type=Path)
    searching.add_argument("label")
    given = parser.parse_args()
    if given.command == "index":
        with Client(given.url) as client:
            added, failed = index_photos(client, given.folder, given.database)
        print(f"{added} photos added, {failed} failed")
    else:
        for path, score in search(given.database, given.label):
            print(f"{score:.3f} {path}")


if __name__ == "__main__":
    main()
