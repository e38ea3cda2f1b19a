"""The parameters of a prediction, checked alike for HTTP, the command line and Python."""

from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationInfo
from pydantic_core import PydanticCustomError

from service.fields import (
    LabelSetName,
    LabelText,
    LanguageTag,
    NoBool,
    ThresholdName,
    replace_errors,
)

MAX_EXPLAINED = 100
"""Most labels of an image that get a map."""

ItemT = TypeVar("ItemT")
LabelName = Annotated[str, StringConstraints(min_length=1, max_length=200)]
# A list may hold millions of invalid items: report the first only.
Names = Annotated[list[ItemT], Field(max_length=10_000, fail_fast=True)]
Threshold = float | ThresholdName

_COMMAS = "A single value in a query string or form is separated at its commas."

TWO_LIMITS = "Give either min_labels or top_k, not both"


def _refuse_two_limits(min_labels: int | None, info: ValidationInfo) -> int | None:
    if min_labels is not None and info.data.get("top_k") is not None:
        raise PydanticCustomError("two_limits", TWO_LIMITS)
    return min_labels


class Question(BaseModel):
    """The parameters of a prediction; None means not given."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # `/docs` fills its form with the examples: each must be valid for every model.
    top_k: Annotated[int | None, NoBool] = Field(
        default=None,
        ge=1,
        description="Most labels in the answer. Without `threshold`: exactly the best `top_k` (or "
        "all, if there are fewer), whatever their scores.",
        examples=[5],
    )
    min_labels: Annotated[int | None, NoBool, AfterValidator(_refuse_two_limits)] = Field(
        default=None,
        ge=1,
        description="Least labels in the answer: all that are found and, if they are fewer, the "
        "best others, with `found` false. Not together with `top_k`.",
        examples=[""],  # which forms do not send: that of `top_k` is sent
    )
    threshold: (
        Annotated[
            Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)] | ThresholdName,
            NoBool,
            replace_errors(
                "threshold",
                "Input should be a number from 0 to 1, 'calibrated', 'balanced', 'recall' or "
                "'precise'",
            ),
        ]
        | None
    ) = Field(
        default=None,
        description="Lowest score of a label in the answer: a number from 0 to 1 for every label, "
        "or a word for each label's own threshold: `calibrated`, which is also the default without "
        "`top_k`; `balanced`, of best F1; `recall`, which finds at least three quarters; "
        "`precise`, at which nine of ten answers are right. Sets with `ranked` have no thresholds: "
        "by default their 5 best labels answer.",
        examples=["calibrated"],
    )
    include: Names[LabelName] | None = Field(
        default=None,
        description=f"Choose among these labels only; repeatable. {_COMMAS}",
        examples=[[]],
    )
    exclude: Names[LabelName] | None = Field(
        default=None, description=f"Leave these labels out; repeatable. {_COMMAS}", examples=[[]]
    )
    category: Names[LabelName] | None = Field(
        default=None,
        description="Choose among labels of these categories only, such as `character`; "
        f"repeatable. Labels without a category are left out. {_COMMAS}",
        examples=[[]],
    )
    parent: Names[LabelName] | None = Field(
        default=None,
        description="Choose among these labels and those below them only, such as `animal`; "
        f"repeatable. {_COMMAS}",
        examples=[[]],
    )
    label_set: Names[LabelSetName] | None = Field(
        default=None,
        description="Label sets to answer from; repeatable. A label in several is answered from "
        f"the first. {_COMMAS} Default: the setting `default_label_set`, else the trained labels "
        "and the bundle's sets.",
        examples=[[]],
    )
    candidate_labels: Names[LabelText] | None = Field(
        default=None,
        description="Labels for this request only, scored by their texts; repeatable. Without "
        "`label_set`, only these are scored. `_` in a name is encoded as a space. "
        f"{_COMMAS}",
        examples=[[]],
    )
    lang: LanguageTag | None = Field(
        default=None,
        description="Language of translations (BCP 47), such as `de`: labels in the answer have a "
        "`translation`, and names in the other parameters may be of this language. `en`: none. "
        "Default: the setting `lang`.",
        examples=[""],  # which forms do not send
    )
    parents: bool | None = Field(
        default=None,
        description="Add the `parents` of each label, such as `animal`, nearest first.",
        examples=[False],
    )
    min_version: Annotated[int | None, NoBool] = Field(
        default=None,
        ge=0,
        le=2**63 - 1,
        description="Answer from label sets of this version or later, such as the version in the "
        "answer of a registration.",
        examples=[0],
    )
    explain: (
        Annotated[
            bool | Literal["overlay"],
            replace_errors("explain", "Input should be true, false or 'overlay'"),
        ]
        | None
    ) = Field(
        default=None,
        description="Show where in the image each label was found: `true` gives every label a "
        f"`map`, `overlay` also a picture to lay over the image. The best {MAX_EXPLAINED} labels "
        "of an image get maps.",
        examples=[False],
    )
    embedding: (
        Annotated[
            bool | Literal["base64"],
            replace_errors("embedding", "Input should be true, false or 'base64'"),
        ]
        | None
    ) = Field(
        default=None,
        description="Add the image's embedding, of length 1: `true` as a list of numbers, `base64` "
        "as little-endian float32 in base64.",
        examples=[False],
    )
