"""The recipe of an open head's training, and the views of photos that it asks for."""

from pydantic import Field

from models.config import InputConfig
from models.train.recipe import BaseRecipe
from models.train.views import Transform, crop_transform, evaluation_transform


class OpenRecipe(BaseRecipe):
    """Choices of an open head's training."""

    template: str = Field(
        "a photo of a {}.",
        pattern=r"^[^{}]*\{\}[^{}]*$",
        description="text that is embedded, {} for the name",
    )
    decoder_width: int = Field(256, ge=1, description="D")
    feedforward_width: int = Field(512, ge=1, description="hidden width of the decoder")
    sharpness_of_votes: float = Field(20.0, gt=0, description="higher: fewer, nearer names vote")

    views: int = Field(2, ge=1, description="copies of each photo to cache; the first as served")
    crop_scale: float = Field(0.5, gt=0, le=1, description="smallest share of a photo in a view")
    color_jitter: float = Field(0.2, ge=0, description="timm's color_jitter, in the other views")

    epochs: int = Field(6, ge=1)
    batch_size: int = Field(64, ge=2, description="photos in a step")
    lr: float = Field(1.5e-3, gt=0, description="peak of OneCycle, for the decoder")
    classifier_lr: float = Field(3e-4, gt=0, description="peak of OneCycle, for the voting names")
    weight_decay: float = Field(2e-2, ge=0, description="AdamW, on matrices only")
    clip_grad: float = Field(5.0, gt=0, description="largest gradient norm")
    ema_decay: float = Field(0.998, ge=0, lt=1, description="of the averaged weights, per step")

    teacher_names: int = Field(256, ge=2, description="names of the teacher's in a step")
    query_noise: float = Field(0.4, ge=0, description="on embeddings, share of their deviation")
    random_queries: int = Field(16, ge=0, description="random queries with target 0 in a step")
    unknown_weight: float = Field(0.2, ge=0, le=1, description="of a concept not in the caption")
    unknown_focus: float = Field(2.0, ge=0, description="focus on the more probable of these")
    sharpness: float = Field(1.5, gt=0, description="of the teacher's ranking of a batch's photos")

    # The default bundle's head was trained with this weight.
    label_weight: float = Field(
        1 / 64, ge=0, description="of the labels' loss, and of the random queries'"
    )
    concept_weight: float = Field(1.0, ge=0, description="of the concepts' loss")
    teacher_weight: float = Field(1.0, ge=0, description="of the teacher's probabilities")
    ranking_weight: float = Field(2.0, ge=0, description="of the teacher's ranking of photos")
    caption_weight: float = Field(1.0, ge=0, description="of matching captions with photos")
    trained_weight: float = Field(0.3, ge=0, description="of distilling the encoder's own head")

    def make_views(self, prepared: InputConfig) -> list[Transform]:
        """Returns the served view, then `views` - 1 mild ones."""
        size, options = (prepared.height, prepared.width), {"color_jitter": self.color_jitter}
        mild = crop_transform(prepared, size, self.crop_scale, options)
        return [evaluation_transform(prepared), *[mild] * (self.views - 1)]
