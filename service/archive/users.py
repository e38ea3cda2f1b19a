"""The tags that a user has given to a photo, in its file and sidecar, apart from own tags."""

from pathlib import Path

from service.archive import PhotoTags, Tag
from service.archive.sidecars import find_sidecar, read_sidecar
from service.archive.tags import find_rejected, list_users, read_tags
from service.bundle.card import fold_name

# First levels of what darktable ("darktable|exported") and digiKam ("_Digikam_Internal_Tags_",
# "_Digikam_root_tag_") note for themselves.
_OF_PROGRAMS = ("darktable", "_digikam_internal_tags_", "_digikam_root_tag_")


def read_photo_tags(photo: Path) -> PhotoTags:
    """Reads the tags of a photo; those of an `a.xmp` are of all photos and RAW files called `a`.

    Raises ValueError or OSError, with the reason, for a sidecar that cannot be read.
    """
    _, state, embedded = read_sidecar(find_sidecar(photo), photo)
    in_photo = read_tags(embedded)
    rejected = find_rejected(state, in_photo)
    users: dict[Tag, Tag] = {}
    for tag in list_users(state, in_photo, rejected):
        # Some programs write `animals|cat` as a flat tag.
        levels = tuple(filter(None, (part.strip() for level in tag for part in level.split("|"))))
        if levels and levels[0].casefold() not in _OF_PROGRAMS:
            users.setdefault(tuple(map(fold_name, levels)), levels)
    gone = {*map(fold_name, rejected)}
    kept = {tag[-1]: None for tag in state.written if fold_name(tag[-1]) not in gone}
    deleted = (state.labels.get(name, name) for name in state.list_deleted(rejected))
    return PhotoTags(tuple(users.values()), tuple(deleted), tuple(kept), state.labels)
