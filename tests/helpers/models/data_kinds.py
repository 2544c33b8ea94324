"""Small models that take different kinds of data, and the data, in files and in memory.

Each kind writes its dataset, and gives the same samples as torch tensors by a way of
its own: from the arrays that were written, not from the files.
"""

import io
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

BATCH, BLOCK, WIDTH, VOCABULARY, END = 4, 8, 16, 32, 0
SAMPLES = 64


@dataclass(frozen=True)
class Kind:
    """A model, its data on the disk, and batches of them in memory."""

    model: Callable[[], nn.Module]
    write: Callable[[Path], dict[str, Any]]
    """Writes the dataset; the keys of an experiment that name it."""
    batch: Callable[[np.ndarray], list[torch.Tensor]]
    """The tensors of these samples, in the order in which the model takes them."""


def attention(x: torch.Tensor, allowed: torch.Tensor | None = None) -> torch.Tensor:
    """One head without weights; `allowed` is 1 where a position may look."""
    scores = x @ x.transpose(1, 2) / WIDTH**0.5
    if allowed is not None:
        scores = scores + (allowed - 1) * 1e4
    return torch.softmax(scores, dim=-1) @ x


def token_loss(logits: torch.Tensor, targets: torch.Tensor, mask: torch.Tensor):
    """The mean cross entropy where the mask is 1."""
    chosen = torch.log_softmax(logits, -1).gather(-1, targets[..., None])[..., 0]
    return -(chosen * mask).sum() / mask.sum()


# Pictures and classes ---------------------------------------------------------


class Vit(nn.Module):
    """Patches of 4x4, attention, a class."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Linear(48, WIDTH)
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        cut = image.reshape(BATCH, 3, 2, 4, 2, 4).permute(0, 2, 4, 1, 3, 5)
        x = attention(self.patch(cut.reshape(BATCH, 4, 48))).mean(1)
        return nn.functional.cross_entropy(self.head(x), label)


_PIXELS = np.random.default_rng(0).integers(0, 256, (SAMPLES, 8, 8, 3), np.uint8)


def _write_images(folder: Path) -> dict[str, Any]:
    from PIL import Image

    for i, pixels in enumerate(_PIXELS):  # by class, then by number
        place = folder / "images" / f"c{i // 16}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(place / f"{i:02}.png")
    return {"data_path": "images", "data": {"image_mean": [0.5] * 3}}


def _images(rows: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(_PIXELS[rows]).permute(0, 3, 1, 2).float() / 255


def _vit(rows: np.ndarray) -> list[torch.Tensor]:
    return [_images(rows) - 0.5, torch.from_numpy(rows // 16)]


# Sequences of unequal lengths ---------------------------------------------------


class Bert(nn.Module):
    """Attention to what is no filling, and a loss where a label is."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, input_ids, attention_mask, labels) -> torch.Tensor:
        x = attention(self.embedding(input_ids), attention_mask[:, None, :])
        counts = (labels >= 0).to(torch.float32)
        return token_loss(self.head(x), labels.clamp(min=0), counts)


_DRAW = np.random.default_rng(1)
_LENGTHS = _DRAW.integers(3, BLOCK + 1, SAMPLES)
_LISTS = [_DRAW.integers(1, VOCABULARY, n) for n in _LENGTHS]
_LABELS = [
    np.where(np.arange(n) % 3, -100, x) for n, x in zip(_LENGTHS, _LISTS, strict=True)
]


def _write_parquet(folder: Path) -> dict[str, Any]:
    import pyarrow
    from pyarrow import parquet

    columns = {
        "tokens": _LISTS,
        "attention_mask": [np.ones(n, np.int8) for n in _LENGTHS],
        "labels": _LABELS,
    }
    rows = pyarrow.table(columns)
    parquet.write_table(rows, folder / "d.parquet", row_group_size=10)
    pad = {"input_ids": 0, "attention_mask": 0, "labels": -100}
    data = {"columns": {"input_ids": "tokens"}, "pad": pad, "readers": 2}
    return {"data_path": "d.parquet", "data": data}


def _bert(rows: np.ndarray) -> list[torch.Tensor]:
    def filled(lists, value):
        made = torch.full((len(rows), BLOCK), value)
        for at, row in enumerate(rows):
            made[at, : _LENGTHS[row]] = torch.as_tensor(lists[row])
        return made

    ones = [np.ones(n, np.int64) for n in _LENGTHS]
    return [filled(_LISTS, 0), filled(ones, 0).float(), filled(_LABELS, -100)]


# Numbers ------------------------------------------------------------------------


class Regression(nn.Module):
    """A hidden layer, and the mean square."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(5, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ((self.head(torch.tanh(self.hidden(x)))[:, 0] - y) ** 2).mean()


_X = np.random.default_rng(2).standard_normal((SAMPLES, 5))
_Y = np.sin(_X.sum(1)).astype(np.float32)


def _write_npz(folder: Path) -> dict[str, Any]:
    np.savez(folder / "d.npz", x=_X, y=_Y)
    return {"data_path": "d.npz"}


def _regression(rows: np.ndarray) -> list[torch.Tensor]:
    return [torch.from_numpy(_X[rows]).float(), torch.from_numpy(_Y[rows])]


# Tokens ---------------------------------------------------------------------------


class Sft(nn.Module):
    """Bigrams with a hidden layer; only answers count."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids, targets, loss_mask) -> torch.Tensor:
        return token_loss(self.head(self.embedding(ids)), targets, loss_mask + 1e-3)


_IDS = np.random.default_rng(3).integers(1, VOCABULARY, SAMPLES * BLOCK + 1)
_ANSWERS = np.arange(len(_IDS)) // 5 % 2


def _write_sft(folder: Path) -> dict[str, Any]:
    _IDS.astype("<u2").tofile(folder / "ids.u16")
    _ANSWERS.astype(np.uint8).tofile(folder / "answers.u8")
    data = {"mask_path": "answers.u8"}
    return {"data_path": "ids.u16", "tokenizer": "u16", "data": data}


def _sft(rows: np.ndarray) -> list[torch.Tensor]:
    at = rows[:, None] + np.arange(BLOCK)
    ids, targets = torch.from_numpy(_IDS[at]), torch.from_numpy(_IDS[at + 1])
    return [ids, targets, torch.from_numpy(_ANSWERS[at + 1]).float()]


class Packed(nn.Module):
    """Attention inside documents, with positions that begin anew in each."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(BLOCK, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids, targets, documents, positions, loss_mask):
        x = self.embedding(ids) + self.places(positions)
        same = documents[:, :, None] == documents[:, None, :]
        logits = self.head(attention(x, same.to(torch.float32)))
        return token_loss(logits, targets, loss_mask)


_TEXTS = [_DRAW.integers(1, VOCABULARY, n) for n in _DRAW.integers(2, 12, 60)]


def _write_packed(folder: Path) -> dict[str, Any]:
    whole = np.concatenate([np.append(text, END) for text in _TEXTS])
    whole.astype("<u4").tofile(folder / "ids.u32")
    data = {"separator": END, "packing": "documents"}
    return {"data_path": "ids.u32", "tokenizer": "u32", "data": data}


def _packs() -> list[list[np.ndarray]]:
    """Pieces of at most T tokens, packed greedily."""
    packs, room = [], 0
    for text in _TEXTS:
        whole = np.append(text, END)
        for at in range(0, len(whole) - 1, BLOCK - 1):
            piece = whole[at : at + BLOCK]
            if len(piece) > room:
                packs.append([])
                room = BLOCK
            packs[-1].append(piece)
            room -= len(piece)
    return packs


def _packed(rows: np.ndarray) -> list[torch.Tensor]:
    packs, made = _packs(), []
    for row in rows:
        line = []
        for number, piece in enumerate(packs[row]):
            for at, token in enumerate(piece):
                last = at == len(piece) - 1
                line.append((token, 0 if last else piece[at + 1], number, at, not last))
        filling = BLOCK - len(line)
        made.append(line + [(END, 0, -1, at, False) for at in range(filling)])
    ids, targets, documents, positions, mask = torch.tensor(made).permute(2, 0, 1)
    return [ids, targets, documents, positions, mask.float()]


# Pairs ------------------------------------------------------------------------------


class Clip(nn.Module):
    """Pictures and captions of one batch, each nearest to its own."""

    def __init__(self) -> None:
        super().__init__()
        self.picture = nn.Linear(192, WIDTH)
        self.text = nn.Embedding(VOCABULARY, WIDTH)

    def forward(self, image: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        a = self.picture(image.reshape(BATCH, 192))
        b = self.text(ids).mean(1)
        own = torch.log_softmax(a @ b.T, -1) + torch.log_softmax(b @ a.T, -1)
        return -(own * torch.eye(BATCH)).sum() / BATCH


_CAPTIONS = np.random.default_rng(4).integers(0, VOCABULARY, (SAMPLES, 6))


def _write_tar(folder: Path) -> dict[str, Any]:
    from PIL import Image

    with tarfile.open(folder / "pairs.tar", "w") as archive:
        for i, pixels in enumerate(_PIXELS):
            picture, caption = io.BytesIO(), io.BytesIO()
            Image.fromarray(pixels).save(picture, "png")
            np.save(caption, _CAPTIONS[i].astype(np.int32))
            for kind, content in (("png", picture), ("ids.npy", caption)):
                entry = tarfile.TarInfo(f"{i:03}.{kind}")
                entry.size = len(content.getvalue())
                archive.addfile(entry, io.BytesIO(content.getvalue()))
    columns = {"image": "png", "ids": "ids.npy"}
    return {"data_path": "pairs.tar", "data": {"columns": columns}}


def _clip(rows: np.ndarray) -> list[torch.Tensor]:
    return [_images(rows), torch.from_numpy(_CAPTIONS[rows])]


KINDS = {
    "regression": Kind(Regression, _write_npz, _regression),
    "sft": Kind(Sft, _write_sft, _sft),
    "vit": Kind(Vit, _write_images, _vit),
    "bert": Kind(Bert, _write_parquet, _bert),
    "clip": Kind(Clip, _write_tar, _clip),
    "packed": Kind(Packed, _write_packed, _packed),
}
NEEDS = {"vit": "PIL", "clip": "PIL", "bert": "pyarrow"}
