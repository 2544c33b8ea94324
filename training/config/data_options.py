"""The options of reading an experiment's data: its key `data`."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

FREE = {"mask_path", "tokenizer_path", "readers", "ahead"}
"""Keys that may change when a run is resumed: the digest covers the data themselves."""


class DataOptions(BaseModel):
    """Every key of `data`."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    format: str | None = Field(
        None,
        description="how data_path is read; null: by its name "
        "(docs/data.md has the table)",
    )
    columns: dict[str, str] = Field(
        {},
        description="by the program's inputs: the name of a sample's array, where it "
        "is another",
    )
    pad: dict[str, float] = Field(
        {},
        description="by the program's inputs: the number that fills up samples that "
        "are shorter than the program takes them",
    )
    truncate: bool = Field(
        False, description="cut samples that are longer than the program takes them"
    )
    split: str | None = Field(
        None, description="of a Hugging Face dataset with several: train, ..."
    )
    separator: int | None = Field(
        None,
        ge=0,
        description="the id that ends a document: samples then have documents, "
        "positions in them, and a loss_mask",
    )
    packing: Literal["windows", "documents"] = Field(
        "windows",
        description="windows: the text cut every T tokens; documents: whole documents, "
        "as many as fit, filled up",
    )
    mask_path: str | None = Field(
        None,
        description="a file of one byte a token: 0 where a token's loss does not count",
    )
    tokenizer_path: str | None = Field(
        None, description="a tokenizer.json of Hugging Face's, for text"
    )
    image_mean: list[float] = Field(
        [], description="by channel: taken off images, which are 0 to 1"
    )
    image_deviation: list[float] = Field(
        [], description="by channel: what images are divided by after that"
    )
    readers: int = Field(
        1, gt=0, le=64, description="threads of a worker that read samples"
    )
    ahead: int = Field(
        4, gt=0, le=1024, description="batches that a worker reads ahead of its steps"
    )
