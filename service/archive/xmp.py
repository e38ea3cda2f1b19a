"""XMP packets: the lists of the fields that hold tags; everything else stays as it is."""

import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

from lxml import etree

from service.archive import Tag


class Field(NamedTuple):
    """A property of XMP that is a list of tags."""

    name: str
    separator: str  # of levels; of a flat field a character that XML forbids
    kind: str = "Bag"  # of a new list


TAGS_LIST = Field("digiKam:TagsList", "/", "Seq")
HIERARCHY = Field("lr:hierarchicalSubject", "|")
SUBJECT = Field("dc:subject", "\0")
FIELDS = (TAGS_LIST, HIERARCHY, SUBJECT)
"""The fields that are written; immich and digiKam read the first one that has tags."""
OTHER_FIELDS = (
    Field("MicrosoftPhoto:LastKeywordXMP", "/"),
    Field("exiftool:LastKeywordXMP", "/"),  # the same in exiftool's spelling of the namespace
    Field("mediapro:CatalogSets", "|"),
)
"""Fields that are never made; digiKam reads and writes them too."""

_SPACES = {
    "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    "dc": "http://purl.org/dc/elements/1.1/",
    "digiKam": "http://www.digikam.org/ns/1.0/",
    "lr": "http://ns.adobe.com/lightroom/1.0/",
    "mediapro": "http://ns.iview-multimedia.com/mediapro/1.0/",
    "MicrosoftPhoto": "http://ns.microsoft.com/photo/1.0/",
    "exiftool": "http://ns.microsoft.com/photo/1.0",
    "mld": "http://ml-decoder-serve/tags/1.0/",
}
_RDF = f"{{{_SPACES['rdf']}}}"
_ITEM, _ABOUT = f"{_RDF}li", f"{_RDF}about"
_LISTS = {f"{_RDF}Bag", f"{_RDF}Seq", f"{_RDF}Alt"}
_EXTENDED = "{http://ns.adobe.com/xmp/note/}HasExtendedXMP"
_EMPTY = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF '
    b'xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"/></x:xmpmeta>'
)
_OTHER_ENCODING = re.compile(
    rb"(?:\xef\xbb\xbf)?<\?xml\s[^>]*\sencoding\s*=\s*.(?!(?:utf-?8|us-ascii)\W)", re.IGNORECASE
)
_UTF_16 = (b"\xff\xfe", b"\xfe\xff", b"<\0", b"\0<")


class Packet:
    """A parsed packet; of no bytes an empty one."""

    def __init__(self, content: bytes = b"") -> None:
        """Parses a packet; raises ValueError with the reason and the next step."""
        _check(content)
        self._is_new = not content
        content = content or _EMPTY
        self._has_declaration = content.startswith(b"<?xml ")
        # `encoding` overrides the file's own, in which a DOCTYPE could hide.
        parser = etree.XMLParser(encoding="utf-8", resolve_entities=False, strip_cdata=False)
        try:
            self._rdf: etree._Element = next(etree.fromstring(content, parser).iter(f"{_RDF}RDF"))
        except etree.LxmlError as error:
            raise ValueError("it is not XML: restore it from a copy, or delete it") from error
        except StopIteration as error:
            raise ValueError("it is not XMP: restore it from a copy, or delete it") from error
        for description in self._descriptions():  # a JPEG's second part is not here
            description.attrib.pop(_EXTENDED, None)

    def read(self, field: Field) -> tuple[Tag, ...] | None:
        """Returns the tags of a field, None if the packet has no such field.

        Raises ValueError if its value is no list.
        """
        element = self._find(field)
        if element is None:
            return None
        return tuple(filter(any, (_split(item, field) for item in element.iterfind(f"*/{_ITEM}"))))

    def replace(self, field: Field, tags: Collection[Tag] | None) -> None:
        """Writes the tags of a field, None to remove it; items that stay are not touched."""
        element = self._find(field)
        if tags is None:
            if element is not None:
                element.getparent().remove(element)
            return
        if element is None:
            element = self._add(field)
        items = next(element.iterchildren(etree.Element), None)
        if items is None:
            items = etree.SubElement(element, f"{_RDF}{field.kind}")
        old = {item: _split(item, field) for item in items.iterfind(_ITEM)}
        wanted, there = {*tags}, {*old.values()}
        for item, tag in old.items():
            if any(tag) and tag not in wanted:
                items.remove(item)
        for tag in [tag for tag in tags if tag not in there]:
            etree.SubElement(items, _ITEM).text = field.separator.join(tag)

    def list_properties(self) -> set[tuple[str, str]]:
        """Returns names and values, of a list one for each item.

        Programs write simple ones as attributes or as elements.
        """
        found = set()
        for description in self._descriptions():
            found |= {(name, text) for name, text in description.items() if name != _ABOUT}
            for element in description.iterchildren(etree.Element):
                for part in element.findall(f"*/{_ITEM}") or [element]:
                    value = (part.text or "").strip()
                    if len(part) or part.attrib:
                        xml = etree.tostring(part, with_tail=False, encoding="unicode")
                        value = etree.canonicalize(xml, strip_text=True, rewrite_prefixes=True)
                    found.add((element.tag, value))
        return found

    def render(self) -> bytes:
        """Returns the packet as UTF-8, with what surrounds its root, as `<?xpacket ...?>`."""
        tree = self._rdf.getroottree()
        if self._is_new:
            etree.indent(tree)
        content: bytes = etree.tostring(
            tree, encoding="UTF-8", xml_declaration=self._has_declaration
        )
        return content

    def _descriptions(self) -> Iterator[etree._Element]:
        yield from self._rdf.iterchildren(etree.Element)

    def _find(self, field: Field) -> etree._Element | None:
        elements = self._rdf.findall(f"rdf:Description/{field.name}", _SPACES)
        lists = [child for element in elements for child in element.iterchildren(etree.Element)]
        attribute = _expand(field)
        texts = [description.get(attribute) for description in self._descriptions()]
        texts += [element.text for element in elements]
        is_list = max(len(elements), len(lists)) <= 1 and all(x.tag in _LISTS for x in lists)
        if is_list and not any(text and text.strip() for text in texts):
            return elements[0] if elements else None
        if field in OTHER_FIELDS:
            return None
        raise ValueError(
            f"its {field.name} is not one list: open it in the program that wrote it, and save it"
        )

    def _add(self, field: Field) -> etree._Element:
        for description in self._descriptions():
            description.attrib.pop(_expand(field), None)  # an empty one
        description = self._rdf.find("rdf:Description", _SPACES)
        if description is None:
            description = etree.SubElement(self._rdf, f"{_RDF}Description", {_ABOUT: ""})
        prefix = field.name.partition(":")[0]
        return etree.SubElement(description, _expand(field), nsmap={prefix: _SPACES[prefix]})


def _expand(field: Field) -> str:
    prefix, _, name = field.name.partition(":")
    return f"{{{_SPACES[prefix]}}}{name}"


def _split(item: etree._Element, field: Field) -> Tag:
    return tuple(str(item.xpath("string()")).strip().split(field.separator))


def _check(content: bytes) -> None:
    if content.startswith(_UTF_16):
        raise ValueError("its encoding is UTF-16: convert it (iconv -f UTF-16 -t UTF-8)")
    if content.endswith(b"\0"):
        size = len(content.rstrip(b"\0"))
        step = "delete it" if size == 0 else f"it is damaged; restore it, or keep {size} bytes"
        raise ValueError(f"it ends in zeros, as after a crash: {step} (truncate -s {size} FILE)")
    if b"<!DOCTYPE" in content:
        raise ValueError("it has a DOCTYPE: save it without")
    if _OTHER_ENCODING.match(content):
        raise ValueError("its encoding is not UTF-8: convert it (iconv -t UTF-8)")
