"""The texts of a label set: its name, its labels' names and prompts, normal and within limits.

In: texts as they are given. Out: types of fields whose values are checked and in one form. Next:
`definition.py`, whose records have such fields.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Annotated

from pydantic import (
    AfterValidator,
    StringConstraints,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

MAX_NAME_CHARACTERS = 200
MAX_PROMPT_CHARACTERS = 1000
# Not to be seen, or able to turn around what stands beside them; the two joiners are letters'
# business in Persian, in Indic scripts and in emoji.
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS = frozenset("\u200c\u200d")


def _check_set_name(value: object, check: ValidatorFunctionWrapHandler) -> str:
    try:
        name: str = check(value)
    except ValidationError as error:  # a pattern tells few people what is wrong
        raise PydanticCustomError(
            "label_set_name",
            "The name of a label set should be 1 to 100 letters, digits or ._- of ASCII, the first "
            "a letter or digit",
        ) from error
    return name


# A name is a part of URLs and, with an ending, a file name.
LabelSetName = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"),
    WrapValidator(_check_set_name),
]


def normalise_text(text: str) -> str:
    """Returns `text` in Unicode's form NFC, without white space around it.

    Raises:
        ValueError: nothing is left, or it has characters that cannot be seen.
    """
    normal = unicodedata.normalize("NFC", text).strip()
    if not normal:
        raise PydanticCustomError("empty_text", "Text should not be empty")
    if any(unicodedata.category(c) in _HIDDEN_CATEGORIES and c not in _JOINERS for c in normal):
        raise PydanticCustomError(
            "hidden_text", "Text should have no control characters, nor others that cannot be seen"
        )
    return normal


# The form NFC of combining marks takes time by the square of their number, in which no other thread
# runs: what is far too long is refused before. NFC shortens no real text to a quarter.
_RAW_SHARE = 4


def _normalise_up_to(most: int) -> Callable[[str], str]:
    def normalise(text: str) -> str:
        normal = normalise_text(text) if len(text) <= _RAW_SHARE * most else text
        if len(normal) > most:
            limit = {"most": most}
            raise PydanticCustomError(
                "long_text", "Text should have at most {most} characters", limit
            )
        return normal

    return normalise


LabelText = Annotated[
    str,
    AfterValidator(_normalise_up_to(MAX_NAME_CHARACTERS)),
    WithJsonSchema({"type": "string", "maxLength": MAX_NAME_CHARACTERS}),
]
PromptText = Annotated[
    str,
    AfterValidator(_normalise_up_to(MAX_PROMPT_CHARACTERS)),
    WithJsonSchema({"type": "string", "maxLength": MAX_PROMPT_CHARACTERS}),
]
