"""The folder of a run, and the state in it: taken up by the same run and by no other.

In: what the loop wants to find again. Out: `state.pt`, and `metrics.csv` with a row an epoch. Used
by the loops of `train` and `train_open`.
"""

from __future__ import annotations

import csv
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from models.train.recipe import RecipeError

_FILE, _IDENTITY = "state.pt", "identity"


@dataclass(frozen=True)
class RunFolder:
    """Where a run keeps what it has done.

    Attributes:
        path: the folder.
        identity: what makes the run what it is: each field of its recipe, its labels and what it
            starts from; plain data.
    """

    path: Path
    identity: dict[str, Any]

    def log(self, row: Mapping[str, str]) -> None:
        """Adds an epoch's row to `metrics.csv`, atomically.

        A run that was killed between its row and its state trains that epoch again: what stands
        there of it, and of later ones, goes.

        Args:
            row: column -> text; `epoch` among them.
        """
        path, staging = self.path / "metrics.csv", self.path / "metrics.tmp"
        earlier: list[Mapping[str, str]] = []
        if path.exists():
            with path.open(newline="") as file:
                rows = csv.DictReader(file)
                earlier = [old for old in rows if int(old["epoch"]) < int(row["epoch"])]
        with staging.open("w", newline="") as file:
            # An earlier version of the program may have had other columns.
            writer = csv.DictWriter(file, row.keys(), restval="", extrasaction="ignore")
            writer.writeheader()
            writer.writerows([*earlier, row])
        staging.replace(path)

    def write_state(self, state: dict[str, Any]) -> None:
        """Writes the state of the run, atomically."""
        staging = self.path / "state.tmp"
        torch.save({_IDENTITY: self.identity, **state}, staging)
        staging.replace(self.path / _FILE)

    def read_state(self) -> dict[str, Any] | None:
        """Reads the state that an earlier call of the run left; None where there is none.

        Raises:
            RecipeError: it is damaged, or another run's.
        """
        path = self.path / _FILE
        if not path.exists():
            return None
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            begun = dict(state[_IDENTITY])
        except Exception as error:  # torch's reader fails in as many ways as bytes can be wrong
            raise RecipeError(f"{path} is damaged or too old: give another --out") from error
        for field, wanted in self.identity.items():
            if begun.get(field) != wanted:
                raise RecipeError(
                    f"the run in {self.path} was begun with {field} "
                    f"{reprlib.repr(begun.get(field))}, not {reprlib.repr(wanted)}: go on as it "
                    "was begun, or give another --out"
                )
        return state
