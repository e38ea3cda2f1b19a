"""Tags in a photo's own file: its XMP packet and IPTC keywords, read by Pillow."""

from pathlib import Path

from PIL import Image, IptcImagePlugin

from service.archive.tags import UserTags, read_user_tags
from service.archive.xmp import FIELDS, READ_ONLY, Packet
from service.images.formats import FORMATS

_XMP_IN_TIFF = 700
_KEYWORDS = (2, 25)  # IPTC IIM 4.2
_NAMES = tuple(field.name.partition(":")[2].encode() for field in (*FIELDS, *READ_ONLY))


def read_embedded(photo: Path) -> UserTags:
    """Returns the tags in a file; none of one that Pillow cannot open.

    Raises ValueError if its XMP has tags that cannot be read.
    """
    try:
        with Image.open(photo, formats=(*FORMATS, "TIFF")) as image:
            iptc = (IptcImagePlugin.getiptcinfo(image) or {}).get(_KEYWORDS, [])
            tiff = getattr(image, "tag_v2", {})  # of a DNG or NEF too
            xmp = image.info.get("xmp") or tiff.get(_XMP_IN_TIFF) or b""
    except Exception:  # Pillow raises errors of nearly every type for damaged files
        return UserTags()
    keywords = (_decode(word).strip() for word in ([iptc] if isinstance(iptc, bytes) else iptc))
    found = UserTags()
    if any(name in xmp for name in _NAMES):
        try:
            found = read_user_tags(Packet(xmp.strip(b"\0 \r\n\t")))
        except ValueError as error:
            reason = "the XMP in the photo is damaged: look at it with exiftool -XMP:all"
            raise ValueError(reason) from error
    return found._replace(flat=(*found.flat, *((word,) for word in keywords if word)))


def _decode(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text.decode("latin-1")
