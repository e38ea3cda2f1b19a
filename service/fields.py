"""Field types of requests, label sets and files, and what is said of their invalid values."""

import unicodedata
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Annotated, Any, Literal, LiteralString, TypeVar, get_args

import pydantic
from pydantic_core import PydanticCustomError

from service.errors import MAX_NAMES, InvalidParameters, ProblemValue, describe_unknown

ModelT = TypeVar("ModelT", bound=pydantic.BaseModel)

MAX_NAME_CHARACTERS = 200
MAX_PROMPT_CHARACTERS = 1000
# These characters are invisible or change the direction of text. Persian, Indic scripts and emoji
# need the two joiners.
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS = frozenset("\u200c\u200d")
# NFC of combining marks takes quadratic time and holds the GIL, so longer texts are refused before.
# NFC shortens no real text to less than a quarter.
_RAW_FACTOR = 4


def replace_errors(code: LiteralString, message: LiteralString) -> pydantic.WrapValidator:
    """Gives one message in place of pydantic's, which show a pattern or each member of a union."""

    def check(value: object, validate: pydantic.ValidatorFunctionWrapHandler) -> object:
        try:
            return validate(value)
        except pydantic.ValidationError as error:
            raise PydanticCustomError(code, message) from error

    return pydantic.WrapValidator(check)


Purpose = Literal["balanced", "recall", "precise"]
"""Further thresholds of a bundle: of best F1; these lowered until they find three quarters; these
raised until nine of ten answers are right."""
ThresholdName = Literal["calibrated", Purpose]

# A name is a part of URLs and, with a suffix, a file name.
LabelSetName = Annotated[
    str,
    pydantic.StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"),
    replace_errors(
        "label_set_name",
        "The name of a label set should be 1 to 100 letters, digits or ._- of ASCII, the first a "
        "letter or digit",
    ),
]


def is_utf8(text: str) -> bool:
    """Returns whether text can be encoded; bytes of any kind are decoded as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def normalise_text(text: str) -> str:
    """Returns `text` in NFC, stripped. Raises `ValueError` if it is empty or partly invisible."""
    normal = unicodedata.normalize("NFC", text).strip()
    if not normal:
        raise PydanticCustomError("empty_text", "Text should not be empty")
    if any(unicodedata.category(c) in _HIDDEN_CATEGORIES and c not in _JOINERS for c in normal):
        raise PydanticCustomError(
            "hidden_text", "Text should not contain control characters or other invisible ones"
        )
    return normal


def _normalise_up_to(limit: int) -> Callable[[str], str]:
    def normalise(text: str) -> str:
        normal = normalise_text(text) if len(text) <= _RAW_FACTOR * limit else text
        if len(normal) > limit:
            raise PydanticCustomError(
                "long_text", "Text should have at most {limit} characters", {"limit": limit}
            )
        return normal

    return normalise


LabelText = Annotated[
    str,
    pydantic.AfterValidator(_normalise_up_to(MAX_NAME_CHARACTERS)),
    pydantic.WithJsonSchema({"type": "string", "maxLength": MAX_NAME_CHARACTERS}),
]


def _spell_tag(tag: str) -> str:
    first, *others = tag.split("-")
    styles = {2: str.upper, 4: str.title}
    return "-".join([first.lower(), *(styles.get(len(x), str.lower)(x) for x in others)])


LanguageTag = Annotated[
    str,
    pydantic.StringConstraints(pattern=r"^[A-Za-z]{2,3}(-[A-Za-z0-9]{1,8}){0,3}$"),
    pydantic.AfterValidator(_spell_tag),
    replace_errors("language", "Input should be a language tag (BCP 47), such as 'de' or 'pt-BR'"),
]
PromptText = Annotated[
    str,
    pydantic.AfterValidator(_normalise_up_to(MAX_PROMPT_CHARACTERS)),
    pydantic.WithJsonSchema({"type": "string", "maxLength": MAX_PROMPT_CHARACTERS}),
]


def _refuse_bool(value: object) -> object:
    if isinstance(value, bool):
        raise PydanticCustomError("truth", "Input should be a number, not true or false")
    return value


NoBool = pydantic.BeforeValidator(_refuse_bool)
"""For numbers: Python's `bool` is an `int`."""


def validate(model: type[ModelT], values: dict[str, Any], where: str) -> ModelT:
    """Returns the model of `values`. Raises InvalidParameters with `where`, such as `body`."""
    try:
        return model.model_validate(values)
    except pydantic.ValidationError as error:
        shown = error.errors(include_url=False, include_context=False, include_input=False)
        raise InvalidParameters(list_values(shown, where, model)) from error


def list_values(
    pydantic_errors: Iterable[Any],
    where: str | None = None,
    model: type[pydantic.BaseModel] | None = None,
) -> list[ProblemValue]:
    """Returns pydantic's first ten errors for clients; without `where`, `loc` begins with it."""
    errors = list(pydantic_errors)
    # An invalid item also makes its list invalid: only the item's error is useful.
    parents = {error["loc"][:depth] for error in errors for depth in range(len(error["loc"]))}
    innermost = (error for error in errors if error["loc"] not in parents)
    values = []
    for error in islice(innermost, MAX_NAMES):
        source, *names = error["loc"] if where is None else (where, *error["loc"])
        name = ".".join(map(str, names)) or str(source)
        values.append(ProblemValue(str(source), name, explain_error(error, model)))
    return values


def explain_error(error: Any, model: type[pydantic.BaseModel] | None) -> str:  # noqa: ANN401 - a dictionary
    """Returns the message of a pydantic error; for an unknown name, with the fields of `model`."""
    if model is None or error["type"] != "extra_forbidden":
        return str(error["msg"])
    *path, name = error["loc"]
    for part in path:
        if isinstance(part, str):  # else an index of a list
            (model,) = _find_models(model.model_fields[part].annotation)
    return f"This name is {describe_unknown(name, tuple(model.model_fields))}"


def _find_models(annotation: object) -> list[type[pydantic.BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _find_models(part)]
