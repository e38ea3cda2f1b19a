"""`bulk --xmp`: labels as tags in XMP sidecars, `NAME.EXT.xmp` next to each photo.

Own tags are those below the root `ml-decoder` of the two hierarchical fields, and their names in
`dc:subject`. A label that the photo has as a tag of other programs is not written, so an own tag
never stands for another's, and removing it is safe.
"""

import logging
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Set
from pathlib import Path
from typing import NamedTuple

from lxml import etree

from service.cli.bulk.parts import open_results, replace_file
from service.errors import StartError
from service.images.folders import read_photo

_ROOT = "ml-decoder"
_SPACES = {
    "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    "dc": "http://purl.org/dc/elements/1.1/",
    "digiKam": "http://www.digikam.org/ns/1.0/",
    "lr": "http://ns.adobe.com/lightroom/1.0/",
}
_RDF = f"{{{_SPACES['rdf']}}}"
_ITEM = f"{_RDF}li"
_LISTS = {f"{_RDF}Bag", f"{_RDF}Seq", f"{_RDF}Alt"}


class _Field(NamedTuple):
    name: str
    kind: str  # of a new list
    prefix: str  # of own tags, up to their name
    separator: str  # of levels


_SUBJECT = _Field("dc:subject", "Bag", "", "\0")
_TREES = (
    _Field("digiKam:TagsList", "Seq", f"{_ROOT}/", "/"),
    _Field("lr:hierarchicalSubject", "Bag", f"{_ROOT}|", "|"),
)
_SEPARATORS = str.maketrans("/|", "--")
_EMPTY = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF '
    b'xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"/></x:xmpmeta>'
)
# darktable's history of many drawn masks takes some hundred kB.
_MAX_BYTES = 8_000_000
_OTHER_ENCODING = re.compile(
    rb"(?:\xef\xbb\xbf)?<\?xml\s[^>]*\sencoding\s*=\s*.(?!utf-8\W)", re.IGNORECASE
)

logger = logging.getLogger(__name__)


def find_folder(location: str, *, from_results: bool) -> Path:
    """Returns the real path of the photos of a run or of results; raises StartError."""
    if from_results:
        location = str(open_results(location).question["photos"])
    if "://" in location or not Path(location).is_dir():
        raise StartError(f"--xmp needs a local folder of photos; {location} is none")
    return Path(location).resolve()


def write_sidecars(out: str, folder: Path) -> Counter[str]:
    """Writes the sidecars of all photos with labels in results; returns fields of `Totals`.

    Found labels are written. Photos that no longer exist are ignored.
    """
    counts = Counter[str]()
    for name, labels in open_results(out).read_found():
        path = f"{folder}/{name}"
        try:
            if path != os.path.realpath(path):
                raise ValueError("the photo is a link, or in a linked folder")
            counts["sidecars"] += os.path.exists(path) and _update(Path(f"{path}.xmp"), labels)
        except (OSError, ValueError, etree.LxmlError) as error:
            reason = "it is not XML" if isinstance(error, etree.LxmlError) else error
            logger.error("%s.xmp was not written: %s", name, reason)
            counts["unwritten"] += 1
    return counts


def _update(path: Path, labels: Iterable[str]) -> bool:
    """Replaces the own tags of a sidecar; returns whether that changed it.

    Raises OSError, or ValueError or LxmlError for a file that must be left as it is.
    """
    content, status = _load(path)
    declared = content.startswith(b"<?xml ")
    # `encoding` overrides the file's own, in which a DOCTYPE could hide.
    parser = etree.XMLParser(encoding="utf-8", resolve_entities=False, strip_cdata=False)
    root = etree.fromstring(content, parser)
    rdf = root if root.tag == f"{_RDF}RDF" else root.find("rdf:RDF", _SPACES)
    if rdf is None:
        raise ValueError("it is not XMP")
    if not _replace_tags(rdf, [label.translate(_SEPARATORS) for label in labels]):
        return False
    if status is None:
        etree.indent(root)
    tree = root.getroottree()  # with what surrounds the root, as `<?xpacket ...?>`
    content = etree.tostring(tree, encoding="UTF-8", xml_declaration=declared)
    replace_file(path, content, path.with_name(f".{path.name}.tmp"), status)
    return True


def _replace_tags(rdf: etree._Element, labels: Iterable[str]) -> bool:
    lists = {field: _open_list(rdf, field) for field in (_SUBJECT, *_TREES)}
    names, others = {_ROOT}, set[str]()  # of own tags, and of tags of other programs
    for field in _TREES:
        for item in lists[field].iterfind(_ITEM):
            levels = _read(item).split(field.separator)
            (names if levels[0] == _ROOT else others).update(levels)
    names -= others
    others.update({_read(item) for item in lists[_SUBJECT].iterfind(_ITEM)} - names)
    labels = [label for label in dict.fromkeys(labels) if label not in others]
    changes = [_edit(lists[field], field, {_ROOT}, labels) for field in _TREES]
    return _edit(lists[_SUBJECT], _SUBJECT, names, labels) or any(changes)


def _edit(tags: etree._Element, field: _Field, roots: Set[str], labels: Iterable[str]) -> bool:
    """Replaces the tags of a list whose first level is in `roots`; returns whether it did."""
    wanted = [field.prefix + label for label in labels]
    items = [tag for tag in tags.findall(_ITEM) if _read(tag).split(field.separator)[0] in roots]
    old = set(map(_read, items))
    for item in items:
        if _read(item) not in wanted:
            tags.remove(item)
    for name in wanted:
        if name not in old:
            etree.SubElement(tags, _ITEM).text = name
    if not len(tags):
        tags.getparent().getparent().remove(tags.getparent())
    return old != set(wanted)


def _read(item: etree._Element) -> str:
    return (item.text or "").strip()


def _open_list(rdf: etree._Element, field: _Field) -> etree._Element:
    """Returns the list of a field, a new one if there is none.

    Raises ValueError for one of another form.
    """
    prefix, name = field.name.split(":")
    space = _SPACES[prefix]
    elements = rdf.findall(f"rdf:Description/{field.name}", _SPACES)
    if not elements:
        description = rdf.find("rdf:Description", _SPACES)
        if description is None:
            description = etree.SubElement(rdf, f"{_RDF}Description", {f"{_RDF}about": ""})
        elements = [etree.SubElement(description, f"{{{space}}}{name}", nsmap={prefix: space})]
        etree.SubElement(elements[0], f"{_RDF}{field.kind}")
    in_attribute = any(child.get(f"{{{space}}}{name}") for child in rdf)
    lists = [child for element in elements for child in element]
    if in_attribute or len(elements) > 1 or len(lists) != 1 or lists[0].tag not in _LISTS:
        raise ValueError(f"its {field.name} is not one list")
    return lists[0]


def _load(path: Path) -> tuple[bytes, os.stat_result | None]:
    """Returns a sidecar's content and status, of a new one None; raises OSError or ValueError."""
    if not os.path.lexists(path):
        return _EMPTY, None
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is not a regular file")
    content = read_photo(path, _MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise ValueError(f"it is larger than {_MAX_BYTES} bytes")
    if b"<!DOCTYPE" in content:
        raise ValueError("it has a DOCTYPE")
    if _OTHER_ENCODING.match(content):
        raise ValueError("its encoding is not UTF-8")
    return content, status
