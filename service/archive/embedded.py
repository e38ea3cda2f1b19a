"""Tags in a photo's own file, read by Pillow."""

from pathlib import Path

from PIL import Image, IptcImagePlugin

from service.archive.xmp import FIELDS, OTHER_FIELDS, SUBJECT, Packet
from service.bundle.card import fold_name
from service.images.formats import FORMATS

_KEYWORDS = (2, 25)  # IPTC IIM 4.2
_NAMES = tuple(field.name.partition(":")[2].encode() for field in (*FIELDS, *OTHER_FIELDS))


def read_embedded(photo: Path) -> Packet:
    """Returns a photo's XMP, with its IPTC keywords in the fields of tags; empty without both.

    Raises ValueError if the XMP has tags that cannot be read.
    """
    if not photo.is_file():  # opening a pipe would block
        return Packet()
    xmp, iptc = None, dict[tuple[int, int], bytes | list[bytes]]()
    try:
        with Image.open(photo, formats=(*FORMATS, "TIFF")) as image:  # of a DNG or NEF too
            xmp = image.info.get("xmp")
            iptc = IptcImagePlugin.getiptcinfo(image) or {}
    except Exception as error:  # Pillow raises errors of nearly every type for damaged files
        if isinstance(error, OSError) and error.errno:  # of the disk
            raise
    xmp = xmp if isinstance(xmp, bytes) else b""
    keywords = iptc.get(_KEYWORDS, [])
    keywords = [keywords] if isinstance(keywords, bytes) else keywords
    words = [word for word in map(_decode, keywords) if word]
    try:
        packet = Packet(xmp.strip(b"\0 \r\n\t"))
        tags = {field: packet.read(field) or () for field in FIELDS}
    except ValueError as error:
        if any(name in xmp for name in _NAMES):
            reason = "the XMP in the photo is damaged: look at it with exiftool -XMP:all"
            raise ValueError(reason) from error
        packet, tags = Packet(), dict.fromkeys(FIELDS, ())
    for field, found in tags.items():
        if words and (found or field is SUBJECT):
            known = {fold_name(level) for tag in found for level in tag}
            more = [(word,) for word in words if fold_name(word) not in known]
            packet.replace(field, [*found, *more])
    return packet


def _decode(text: bytes) -> str:
    try:
        return text.decode().strip()
    except UnicodeDecodeError:
        return text.decode("latin-1").strip()
