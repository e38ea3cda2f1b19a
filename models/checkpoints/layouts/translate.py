"""Recognises a foreign checkpoint's layout and translates it."""

import re

from models.checkpoints.description import CheckpointError, Description, Hints, State, Weights
from models.checkpoints.layouts import backbones, ml_decoder, query2label, ram
from models.checkpoints.layouts.body import OFFICIAL_TRESNET_MARK, read_body
from models.checkpoints.layouts.classifier import read_classifier
from models.checkpoints.layouts.state import (
    leave_out_training,
    refuse_others,
    refuse_several,
    take,
    unwrap,
)
from models.checkpoints.layouts.unsupported import refuse_unsupported

# The network's prefix in the module that trained it, then a tensor of every head.
_HEAD = re.compile(
    r"((?:(?:model|net|network|module|_orig_mod)\.)*)(?:.*\.)?"
    rf"(?:{re.escape(ml_decoder.MARK)}|{re.escape(query2label.MARK)})"
)


def read_foreign(content: object, hints: Hints, given: Description) -> Weights:
    """Translates a file's content; facts `given` with the file override its own."""
    state, described = unwrap(content)
    described = given.complete(described)
    state = leave_out_training(state)
    refuse_unsupported(state)
    state = backbones.rename_densenet(_take_network(state))
    ignored = given.model_args or (given.preparation and not given.photos)
    if ignored and (query2label.MARK in state or ram.is_ram(state)):
        raise CheckpointError(
            "the file is Query2Label or RAM, which is not prepared as the config.json beside it "
            "says: move that file away, and give --mean, --std and --interpolation if they differ"
        )
    if query2label.MARK in state:
        return query2label.read_query2label(state, hints, described.label_names)
    if ram.is_ram(state):
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


def read_bare_backbone(content: object, given: Description) -> tuple[State, Description] | None:
    """Reads a backbone and its own classifier under timm's names; None if there is a known head."""
    state, described = unwrap(content)
    if any(_HEAD.fullmatch(key) for key in state):
        return None
    refuse_unsupported(state)
    state = backbones.rename_tresnet(state) if OFFICIAL_TRESNET_MARK in state else state
    return state, given.complete(described)


def _take_network(state: State) -> State:
    """Takes a network out of the module that trained it, such as Lightning's.

    Raises CheckpointError if that has other tensors, which may be of a step before the network.
    """
    heads = [match for key in state if (match := _HEAD.fullmatch(key))]
    if len(heads) > 1:
        refuse_several(f"with {heads[0][0]} and {heads[1][0]}")
    if not heads:
        return state
    refuse_others(key for key in state if not key.startswith(heads[0][1]))
    return take(state, heads[0][1])


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
