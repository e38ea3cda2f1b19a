"""What photos look like to an encoder: the scale of learnt labels. Saved as `background.npz`."""

import io
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from service.errors import BundleError
from service.labels.arrays import read_arrays

MIN_PHOTOS = 200
Vector: TypeAlias = NDArray[np.float32]
"""One embedding or direction, float32 [D]."""
Vectors: TypeAlias = NDArray[np.float32]
"""Several, float32 [n, D]."""

# With 200, the precision of labels with two examples differs by 0.04 between backgrounds.
_MOST_HELD_OUT = 400
_COMPONENTS = 64  # 1,000 are no better
# Weight of the mean variance of all directions; 0.8 has a lower precision at the same recall.
_SHRINKAGE = 0.9
_ARRAYS = {
    **{"mean": np.float32, "components": np.float16, "variances": np.float32},
    **{"rest": np.float32, "held_out": np.float16},
}


class Whitening:
    """Mean and covariance of embeddings of photos, and the embeddings of other photos.

    Attributes:
        mean: float32 [D].
        components: float16 [r, D], the directions of largest variance, orthonormal.
        variances: float32 [r], along them.
        rest: float32 [], the variance in each other direction.
        held_out: float16 [n, D], of photos that the others were not computed from. The spread of a
            label's values has to be measured on them: estimated from few variances, it is too
            small.
        others: these, whitened, float32 [n, D].
    """

    def __init__(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Takes the arrays by name. Raises `BundleError` if they do not fit each other."""
        try:
            self.arrays: dict[str, NDArray[Any]] = {
                name: arrays[name].astype(kind) for name, kind in _ARRAYS.items()
            }
            mean, components, variances, rest, held_out = self.arrays.values()
            fits = (
                mean.ndim == variances.ndim == 1
                and len(variances) < len(mean)
                and components.shape == (len(variances), len(mean))
                and held_out.shape[1:] == mean.shape
                and len(held_out) > 1
                and rest.shape == ()
                and rest > 0
                and (variances >= 0).all()
                and all(np.isfinite(array).all() for array in self.arrays.values())
            )
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise BundleError("the background has other arrays than it should") from error
        if not fits:
            raise BundleError("the arrays of the background do not fit each other")
        width, count = len(mean), len(variances)
        floor = _SHRINKAGE * (variances.sum() + rest * (width - count)) / width
        self.width = width
        self._mean = mean
        self._axes = components.astype(np.float32)
        self._gain = 1 / np.sqrt((1 - _SHRINKAGE) * rest + floor)
        self._gains = 1 / np.sqrt((1 - _SHRINKAGE) * variances + floor) - self._gain
        self.others = self.whiten(held_out.astype(np.float32))

    def whiten(self, embeddings: Vectors) -> Vectors:
        """Returns embeddings [n, D] of length 1, less the mean, with equal variances."""
        return self._scale(embeddings - self._mean)

    def project(self, direction: Vector) -> tuple[Vector, float]:
        """Returns v [D] and b for a direction w [D] of whitened embeddings.

        v . f + b is the standardised w . whiten(f): mean 0 and deviation 1 over other photos.
        """
        mean, deviation = self.measure(direction)
        (vector,), (offset,) = self.pull_back(direction[np.newaxis] / np.float32(deviation))
        return vector, float(offset) - mean / deviation

    def pull_back(self, directions: Vectors) -> tuple[Vectors, Vector]:
        """Returns v [L, D] and b [L] for w [L, D]: v . f + b is w . whiten(f)."""
        vectors = self._scale(directions)
        return vectors, -(vectors @ self._mean)

    def measure(self, direction: Vector) -> tuple[float, float]:
        """Returns mean and deviation of w . x over the whitened embeddings x of other photos."""
        values = self.others @ direction
        return float(values.mean()), max(float(values.std()), 1e-6)

    def _scale(self, rows: Vectors) -> Vectors:
        scaled: Vectors = rows * self._gain + ((rows @ self._axes.T) * self._gains) @ self._axes
        return scaled.astype(np.float32, copy=False)

    def to_bytes(self) -> bytes:
        """Returns the content of `background.npz`."""
        file = io.BytesIO()
        np.savez(file, allow_pickle=False, **self.arrays)
        return file.getvalue()


def read_whitening(content: bytes) -> Whitening:
    """Reads the content of `background.npz`. Raises `BundleError` if it is damaged."""
    try:
        # `to_bytes` does not compress.
        return Whitening(read_arrays(content, tuple(_ARRAYS), most=len(content)))
    except ValueError as error:
        raise BundleError(f"background.npz {error}") from error


def fit_whitening(embeddings: Vectors) -> Whitening:
    """Measures [n, D] of length 1, n >= `MIN_PHOTOS`; a third, at most 400, is held out."""
    held_out = min(len(embeddings) // 3, _MOST_HELD_OUT)
    others, fitted = np.split(embeddings, [held_out])
    mean = fitted.mean(axis=0)
    _, lengths, axes = np.linalg.svd(fitted - mean, full_matrices=False)
    variances = lengths**2 / (len(fitted) - 1)
    # The last direction has no variance: n photos span n - 1.
    kept = min(_COMPONENTS, len(variances) - 1, embeddings.shape[1] - 1)
    rest = variances[kept:].sum() / (embeddings.shape[1] - kept)
    return Whitening(
        {
            "mean": mean,
            "components": axes[:kept],
            "variances": variances[:kept],
            "rest": np.asarray(max(rest, np.finfo(np.float32).tiny)),
            "held_out": others,
        }
    )
