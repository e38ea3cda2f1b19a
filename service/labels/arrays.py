"""Reads `.npz` files of strangers: sizes are checked before anything is allocated or inflated."""

import io
import math
import re
import sys
import zipfile
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.errors import list_names

# As numpy writes it. numpy itself evaluates a header as Python, which raises errors of any type,
# and allocates any number of texts without characters.
_HEADER = re.compile(
    rb"\{\s*'descr':\s*'([<>|=]?[biufU][1-9]\d{0,3})',\s*'fortran_order':\s*(True|False),"
    rb"\s*'shape':\s*\(([\d, ]{0,99})\),?\s*\}\s*"
)
_MAX_HEADER_BYTES = 10_000  # numpy's own limit
_STEP = "write it with numpy.savez"
_STEP_BYTES = 1 << 20  # zlib has what it inflates at once twice
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
            if not {*required} <= {*names} <= {*required, *optional} or len({*names}) < len(names):
                more = f", and may have {', '.join(optional)}" if optional else ""
                raise _Refused(
                    f"must have the arrays {' and '.join(required)}{more}; it has "
                    f"{list_names(names) or 'none'}"
                )
            if (total := sum(info.file_size for info in infos)) > most:
                raise _Refused(f"must have at most {most} bytes of arrays, not {total}: {_STEP}")
            return {n: _read_array(archive, info) for n, info in zip(names, infos, strict=True)}
    except _Refused:
        raise
    except (
        *(zipfile.BadZipFile, zlib.error, ValueError, TypeError, OSError, EOFError),
        *(RuntimeError, MemoryError, OverflowError),
    ) as error:  # of a damaged or encrypted archive too
        raise ValueError(f"must be a readable .npz without pickles: {_STEP}") from error


class _Refused(ValueError):
    pass


def _read_array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    if info.compress_type not in _INFLATED:
        raise ValueError(info.compress_type)
    with archive.open(info) as file:
        magic = file.read(8)
        length = int.from_bytes(file.read(2 if magic[6:7] == b"\1" else 4), "little")
        header = _HEADER.fullmatch(file.read(min(length, _MAX_HEADER_BYTES)))
        if magic[:6] != np.lib.format.MAGIC_PREFIX or header is None:
            raise ValueError(magic)
        dtype = np.dtype(header[1].decode())
        shape = [int(number) for number in header[3].split(b",") if number.strip()]
        size = math.prod(shape) * dtype.itemsize
        if size != info.file_size - file.tell():
            raise ValueError(size)
        data = bytearray(size)
        for start in range(0, size, _STEP_BYTES):
            part = file.read(_STEP_BYTES)
            data[start : start + len(part)] = part
        if file.tell() < info.file_size:  # else zipfile has compared the checksum
            raise ValueError(file.tell())
        codes = np.ndarray(size // 4, f"{dtype.byteorder}u4", data)
        if dtype.kind == "U" and codes.max(initial=0) > sys.maxunicode:  # a SystemError in `tolist`
            raise ValueError(codes)
        return np.ndarray(shape, dtype, data, order="F" if header[2] == b"True" else "C")
