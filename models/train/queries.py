"""Label queries of zero-shot training (arXiv 2111.12933, section 3.4): choice and augmentation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from models.data import DataError, LabelledFolder


@dataclass(frozen=True)
class QueryAugmentation:
    """Noise on the queries, and random queries that are absent from every photo.

    Attributes:
        num_random: R, random queries in a batch, with the target 0 on every photo.
        noise: standard deviation of the noise, as a share of the embeddings' own.
    """

    num_random: int = 0
    noise: float = 0.0

    def augment(self, embeddings: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Maps (embeddings [L, E], targets [B, L]) to ([L + R, E], [B, L + R]); L is at least 2."""
        deviation = embeddings.std(dim=0)  # [E]
        noisy = embeddings + self.noise * deviation * torch.randn_like(embeddings)
        mean = embeddings.mean(dim=0)
        random = mean + deviation * torch.randn(
            self.num_random, embeddings.shape[1], device=embeddings.device
        )
        absent = targets.new_zeros(len(targets), self.num_random)
        return torch.cat([noisy, random]), torch.cat([targets, absent], dim=1)


@dataclass(frozen=True, eq=False)
class ZeroShotLabels:
    """Labels to train on, and others to validate on.

    Attributes:
        embeddings: float [N, E], of every label.
        seen: bool [N], labels for training.
        validated: bool [N], the unseen labels; the seen ones if there are none.
        augmentation: of the embeddings in training.
    """

    embeddings: Tensor
    seen: Tensor
    validated: Tensor
    augmentation: QueryAugmentation

    def for_training(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Returns (augmented embeddings [L, E], targets [B, L]) of the seen labels."""
        return self.augmentation.augment(self.embeddings[self.seen], targets[:, self.seen])

    def for_validation(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Returns (embeddings [L, E], targets [n, L]) of the validated labels."""
        return self.embeddings[self.validated], targets[:, self.validated.cpu()]


def read_zero_shot_labels(
    folder: LabelledFolder, augmentation: QueryAugmentation, device: torch.device
) -> ZeroShotLabels:
    """Returns the labels of a folder with word vectors; raises DataError for fewer than 2 seen."""
    vectors = folder.word_vectors
    assert vectors is not None  # `build_network` requires them
    if len(vectors.seen) < 2:
        raise DataError(f"data set {folder.name} has fewer than 2 labels for training")
    seen, unseen = (
        torch.tensor([name in chosen for name in folder.label_names], device=device)
        for chosen in (set(vectors.seen), set(vectors.unseen))
    )
    embeddings = torch.from_numpy(vectors.embeddings).to(device)
    return ZeroShotLabels(embeddings, seen, unseen if bool(unseen.any()) else seen, augmentation)
