"""Labels of a zero-shot run: embeddings to train with, others to validate on.

In: a folder's word vectors. Out: `OpenLabels`. Next: `loop.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from models.data import DataError, LabelledFolder
from models.train.query_augmentation import QueryAugmentation


@dataclass(frozen=True, eq=False)
class OpenLabels:
    """Which labels training sees, and how their embeddings are augmented.

    Attributes:
        embeddings: float [N, E], of every label.
        seen: bool [N], what training sees.
        unseen: bool [N], what it must not see; labels of neither are left out.
        augmentation: of the embeddings in training.
    """

    embeddings: Tensor
    seen: Tensor
    unseen: Tensor
    augmentation: QueryAugmentation

    def for_training(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Returns (augmented embeddings [L, E], targets [B, L]) of the seen labels."""
        return self.augmentation.augment(self.embeddings[self.seen], targets[:, self.seen])

    @property
    def _validated(self) -> Tensor:
        return self.unseen if bool(self.unseen.any()) else self.seen

    @property
    def validation_embeddings(self) -> Tensor:
        """Embeddings [L, E] of the unseen labels; of the seen where there are none."""
        return self.embeddings[self._validated]

    def validation_targets(self, targets: Tensor) -> Tensor:
        """Returns the columns of `validation_embeddings`, float [n, L]."""
        return targets[:, self._validated.cpu()]


def make_open_labels(
    data: LabelledFolder, augmentation: QueryAugmentation, device: torch.device
) -> OpenLabels | None:
    """Returns the labels of a folder with word vectors, None of another.

    Raises:
        DataError: training sees fewer than 2 labels, whose spread nobody knows.
    """
    vectors = data.word_vectors
    if vectors is None:
        return None
    if len(vectors.seen) < 2:
        raise DataError(f"data set {data.name} has fewer than 2 labels that training may see")
    seen, unseen = (
        torch.tensor([name in chosen for name in data.label_names], device=device)
        for chosen in (set(vectors.seen), set(vectors.unseen))
    )
    embeddings = torch.from_numpy(vectors.embeddings).to(device)
    return OpenLabels(embeddings, seen, unseen, augmentation)
