"""A photo's EXIF block: the one number we need of it, found without parsing the rest.

In: an EXIF block, or the bytes of a HEIC or AVIF file. Out: the orientation, 1 to 8, or a file that
no reader looks into for EXIF. Next: `images.py`, which decodes.
"""

from __future__ import annotations

import struct

UPRIGHT = 1
_ORIENTATION_TAG = 0x0112
_SHORT = 3  # TIFF's name for an unsigned 16-bit number
EXIF_HEADER = b"Exif\0\0"
_TIFF_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
# Types of items in an ISO container, the second one of nothing.
_EXIF_ITEM, _NO_ITEM = b"Exif", b"none"


def read_orientation(exif: bytes) -> int:
    """Returns the orientation (1..8, EXIF's numbers) that an EXIF block asks for.

    Whatever is malformed counts as upright: a photo is worth more than its metadata.
    """
    tiff = exif.removeprefix(EXIF_HEADER)
    order = _TIFF_ORDERS.get(tiff[:4])
    if order is None:
        return UPRIGHT
    try:
        (start,) = struct.unpack_from(f"{order}I", tiff, 4)
        (entries,) = struct.unpack_from(f"{order}H", tiff, start)
        for position in range(start + 2, start + 2 + entries * 12, 12):
            tag, kind, count, value = struct.unpack_from(f"{order}HHIH", tiff, position)
            if tag == _ORIENTATION_TAG:
                known = kind == _SHORT and count == 1 and 1 <= value <= 8
                return value if known else UPRIGHT
    except struct.error:  # the block ends early
        pass
    return UPRIGHT


def hide_exif(data: bytes) -> bytes:
    """Renames the EXIF items of a HEIC or AVIF file, so that no reader looks for them.

    Nothing is lost: what turns these pictures upright is a property of the picture itself
    (ISO/IEC 23008-12, 6.5.10), and EXIF's orientation has to be ignored.

    Args:
        data: an ISO container, possibly damaged; what cannot be followed is left as it is.
    """
    position = 0
    while len(data) >= position + 8:
        size, kind = struct.unpack_from(">I4s", data, position)
        if kind == b"meta":
            end = position + size if size >= 8 else len(data)
            items = data[position:end].replace(_EXIF_ITEM, _NO_ITEM)
            return data[:position] + items + data[end:]
        if size < 8:  # to the end of the file, or longer than 4 GiB
            break
        position += size
    return data
