"""What models of transformers are trained for: their class, and what they take.

The names are those of transformers' pipelines.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pcp.errors import UsageError


@dataclass(frozen=True)
class Size:
    """How much data a program takes at once."""

    batch: int
    block: int


Inputs = Callable[[Any, Size], dict[str, Any]]


@dataclass(frozen=True)
class Task:
    """The class that makes the model; endings of architectures; example inputs."""

    auto: str
    suffixes: tuple[str, ...]
    inputs: Inputs


def _ids(size: Size) -> Any:
    import torch

    return torch.zeros((size.batch, size.block), dtype=torch.int64)


def _classes(size: Size) -> Any:
    return _ids(size)[:, 0].clone()


def _tokens(config: Any, size: Size) -> dict[str, Any]:
    """Labels are the ids themselves: such models shift them, and skip -100."""
    return {"input_ids": _ids(size), "labels": _ids(size), "use_cache": False}


def _masked(config: Any, size: Size) -> dict[str, Any]:
    names = ("input_ids", "attention_mask", "labels")
    return {name: _ids(size) for name in names}


def _pairs(config: Any, size: Size) -> dict[str, Any]:
    return _masked(config, size) | {"use_cache": False}


def _texts(config: Any, size: Size) -> dict[str, Any]:
    return _masked(config, size) | {"labels": _classes(size)}


def _pixels(config: Any, size: Size) -> Any:
    import torch

    edge = getattr(config, "image_size", None) or 224
    height, width = edge if isinstance(edge, list | tuple) else (edge, edge)
    return torch.zeros((size.batch, config.num_channels, height, width))


def _images(config: Any, size: Size) -> dict[str, Any]:
    return {"pixel_values": _pixels(config, size), "labels": _classes(size)}


def _captions(config: Any, size: Size) -> dict[str, Any]:
    given = {name: _ids(size) for name in ("input_ids", "attention_mask")}
    pixels = _pixels(config.vision_config, size)
    return given | {"pixel_values": pixels, "return_loss": True}


def _speech(config: Any, size: Size) -> dict[str, Any]:
    import torch

    frames = 2 * config.max_source_positions  # the encoder halves them
    features = torch.zeros((size.batch, config.num_mel_bins, frames))
    return {"input_features": features, "labels": _ids(size), "use_cache": False}


TASKS: Mapping[str, Task] = {
    "text-generation": Task(
        "AutoModelForCausalLM", ("ForCausalLM", "LMHeadModel"), _tokens
    ),
    "fill-mask": Task("AutoModelForMaskedLM", ("ForMaskedLM",), _masked),
    "text2text-generation": Task(
        "AutoModelForSeq2SeqLM", ("T5ForConditionalGeneration",), _pairs
    ),
    "text-classification": Task(
        "AutoModelForSequenceClassification", ("ForSequenceClassification",), _texts
    ),
    "image-classification": Task(
        "AutoModelForImageClassification", ("ForImageClassification",), _images
    ),
    "zero-shot-image-classification": Task(
        "AutoModelForZeroShotImageClassification", ("CLIPModel",), _captions
    ),
    "automatic-speech-recognition": Task(
        "AutoModelForSpeechSeq2Seq", ("WhisperForConditionalGeneration",), _speech
    ),
}


def example_inputs(
    task: Task, config: Any, size: Size, given: Mapping[str, Any]
) -> dict[str, Any]:
    """What the model is called with: the task's inputs, and those that are given.

    None as a given value leaves an input out.
    """
    try:
        found = task.inputs(config, size)
    except AttributeError as error:
        raise UsageError(
            f"the configuration does not say the shape of the inputs ({error}); give "
            "them as keywords"
        ) from error
    return {k: v for k, v in {**found, **given}.items() if v is not None}
