"""Seeds of a fuzzer: small files of every supported kind, and mutations."""

import random
from collections.abc import Sequence

from service.images.formats import FORMATS
from tests.support.odd_files import make_cut_files, make_odd_files
from tests.support.photos import encode_picture, make_exif, make_picture

_MODES = {"PNG": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"), "JPEG": ("L", "RGB", "CMYK"),
          "GIF": ("P",), "BMP": ("1", "L", "P", "RGB"), "WEBP": ("RGB", "RGBA"),
          "HEIF": ("RGB", "RGBA"), "AVIF": ("RGB", "RGBA")}  # fmt: skip
_TRAILER_BYTES = 500
# Numbers at the edges of lengths and sizes.
_EDGES = (bytes(4), b"\xff" * 4, b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\1", b"\xff")


def make_seeds() -> list[bytes]:
    """Returns good files of every format and mode, odd ones, and JPEGs that end early."""
    picture = make_picture(0, 40, 24)
    seeds = []
    for file_format in FORMATS:
        for mode in _MODES[file_format]:
            grey = mode in ("1", "LA", "I;16")
            converted = (picture.convert("L") if grey else picture).convert(mode)
            seeds.append(encode_picture(converted, file_format))
    seeds.append(encode_picture(picture, "JPEG", exif=make_exif(6), progressive=True))
    frames = [make_picture(seed, 40, 24) for seed in (1, 2)]
    moving = {"save_all": True, "append_images": frames}
    seeds += [encode_picture(picture, kind, **moving) for kind in ("GIF", "PNG", "WEBP")]
    odd = make_odd_files(_TRAILER_BYTES).values()
    return [*seeds, *(file for file, _ in odd), *make_cut_files(_TRAILER_BYTES).values()]


def mutate(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """Returns `data` with one to six random mutations."""
    body = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(body) + 1)
        match rng.randrange(7):
            case 0:
                body[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                body[at : at + 4] = rng.choice(_EDGES)
            case 2:
                del body[at : at + rng.randint(1, 64)]
            case 3:
                body[at:at] = rng.randbytes(rng.randint(1, 64))
            case 4:
                body[at:at] = body[at : at + rng.randint(1, 200)]
            case 5:
                other = rng.choice(others)
                begin = rng.randrange(len(other))
                body[at : at + 100] = other[begin : begin + 100]
            case _:
                del body[at:]
    return bytes(body)
