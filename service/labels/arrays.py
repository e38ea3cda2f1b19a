"""Reads `.npz` files of strangers: sizes are checked before anything is allocated or inflated."""

import io
import math
import sys
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.errors import list_names

_READ_HEADER = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_STEP = "write it with numpy.savez"
_INFLATED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Python reads them in steps; a member in LZMA or BZIP2 is inflated whole, whatever its size."""


def read_arrays(
    content: bytes, required: Sequence[str], optional: Sequence[str] = (), *, most: int
) -> dict[str, NDArray[Any]]:
    """Returns the arrays of an `.npz` by name; they have at most `most` bytes.

    Raises ValueError with a reason that continues "The file".
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            infos = archive.infolist()
            names = [info.filename.removesuffix(".npy") for info in infos]
            total = sum(info.file_size for info in infos)
            if not {*required} <= {*names} <= {*required, *optional} or len({*names}) < len(names):
                more = f", and may have {', '.join(optional)}" if optional else ""
                reason = f"must have the arrays {' and '.join(required)}{more}; it has "
                reason += list_names(names) or "none"
            elif total > most:
                reason = f"must have at most {most} bytes of arrays, not {total}: {_STEP}"
            else:
                return {n: _read_array(archive, info) for n, info in zip(names, infos, strict=True)}
    except Exception as error:  # of a damaged header, which is evaluated as Python, any type
        raise ValueError(f"must be a readable .npz without pickles: {_STEP}") from error
    raise ValueError(reason)


def _read_array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    if info.compress_type not in _INFLATED:
        raise ValueError(info.compress_type)
    with archive.open(info) as file:
        shape, _, dtype = _READ_HEADER[np.lib.format.read_magic(file)](file)
        size = math.prod(shape) * dtype.itemsize
        # numpy allocates any number of texts without characters.
        if dtype.kind not in "biufU" or not dtype.itemsize or size != info.file_size - file.tell():
            raise ValueError(dtype)
    with archive.open(info) as file:  # in steps of 256 KiB, and checks the sum of the bytes
        array: NDArray[Any] = np.lib.format.read_array(file)
    if dtype.kind == "U":
        codes = np.atleast_1d(array).view(f"{dtype.byteorder}u4")
        if codes.max(initial=0) > sys.maxunicode:  # a SystemError in `tolist`
            raise ValueError(codes)
    return array
