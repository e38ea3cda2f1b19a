"""Recognises a foreign checkpoint's layout and translates it."""

import re

from models.checkpoints.description import CheckpointError, Description, Hints, State, Weights
from models.checkpoints.files import NETWORK, CheckpointFile
from models.checkpoints.layouts import backbones, ml_decoder, query2label, ram
from models.checkpoints.layouts.body import OFFICIAL_TRESNET_MARK, read_body, take_body
from models.checkpoints.layouts.classifier import read_classifier
from models.checkpoints.layouts.state import find_prefix, leave_out_training, refuse_others, unwrap
from models.checkpoints.layouts.unsupported import refuse_unsupported
from models.checkpoints.preparation import PREPROCESS, TAGS


def read_foreign(content: object, hints: Hints, given: Description) -> Weights:
    """Translates a file's content; facts `given` with the file override its own."""
    if given.is_tagger and not given.photos and None in (hints.channels, hints.pad):
        raise CheckpointError(
            f"the file is in a folder with {TAGS}, and no {PREPROCESS} shows how photos were "
            "prepared: give --channels rgb or bgr, and --pad COLOUR or none (WD taggers v3: "
            "--channels bgr --pad white)"
        )
    state, described = unwrap(content)
    described = given.complete(described)
    state = leave_out_training(state)
    refuse_unsupported(state)
    state = backbones.rename_densenet(take_body(state, [query2label.MARK]))
    is_ram = any(key.startswith(ram.HEADS) for key in state)
    if (given.model_args or given.preparation) and (query2label.MARK in state or is_ram):
        raise CheckpointError(
            "the file is Query2Label or RAM, which is not prepared as the config.json or "
            f"{PREPROCESS} beside it says: move them away, and give --mean, --std and "
            "--interpolation if they differ"
        )
    if query2label.MARK in state:
        return query2label.read_query2label(state, hints, described.label_names)
    if is_ram:
        return ram.read_ram(state, hints, described.label_names)
    parts = ml_decoder.split_head(state)
    if parts is not None:
        return _read_ml_decoder(*parts, hints, described)
    classifier = read_classifier(state, hints, described)
    if classifier is None:
        raise CheckpointError(
            "the checkpoint has no head of ML-Decoder, Query2Label or RAM: there is neither "
            f"{ml_decoder.MARK} nor {query2label.MARK} nor {ram.HEADS[0]}*; if it is a classifier "
            "on a model of timm, give that model's name with --backbone"
        )
    return classifier


def read_bare_backbone(file: CheckpointFile) -> tuple[State, Description] | None:
    """Reads a backbone and its own classifier under timm's names; None if there is a known head."""
    if NETWORK in file.metadata:
        return None
    state, described = unwrap(file.content)
    if any(find_prefix(state, [mark]) is not None for mark in (ml_decoder.MARK, query2label.MARK)):
        return None
    refuse_unsupported(state)
    state = backbones.rename_tresnet(state) if OFFICIAL_TRESNET_MARK in state else state
    return state, file.description.complete(described)


def _read_ml_decoder(
    prefix: str, head_keys: State, body: State, hints: Hints, described: Description
) -> Weights:
    config, head_state = ml_decoder.read_ml_decoder(head_keys, hints.num_heads)
    head = Weights(head_state, config, described.label_names)
    if not body:
        return head
    # The head's own module, or a sequence that ends with it, may have layers before the head.
    around = re.sub(r"\d+\.$", "", prefix)
    inside = [key for key in body if around and key.startswith(around)]
    if len(inside) < len(body):  # else it is a prefix of everything
        refuse_others(inside)
    body, facts = read_body(body, hints, described, config.encoder_width, prefix)
    return head.put_on(body, prefix_tokens=hints.prefix_tokens or "drop", **facts)
