"""Token files: ids of every width, documents, and masks, against a loop by hand."""

from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcp.errors import ConfigError
from pcp.manifest import TensorSpec
from pcp.training.config.experiment_file import (
    parse,
)
from pcp.training.data.corpus import Corpus
from pcp.training.data.dataset import token_inputs
from pcp.training.data.tokens import sampled_digest

BASE = {"model_path": "m.mlir", "learning_rate": 0.1, "tau": 2, "outer_loop_steps": 3}
BATCH, BLOCK, END = 2, 6, 0


def spec(name, dtype="i64"):
    return TensorSpec(name=name, role="data", shape=(BATCH, BLOCK), dtype=dtype)


def corpus(folder, ids, names, width="<u2", mask=None, **data) -> Corpus:
    """The samples of a file of these ids, in its order, none held out."""
    np.asarray(ids, width).tofile(folder / "ids")
    if mask is not None:
        np.asarray(mask, np.uint8).tofile(folder / "mask")
        data["mask_path"] = str(folder / "mask")
    given = {
        "data_path": str(folder / "ids"),
        "tokenizer": {"<u2": "u16", "<u4": "u32", "u1": "byte"}[width],
        "sampling": "fifo",
        "validation_fraction": 0,
    }
    experiment = parse(BASE | given | ({"data": data} if data else {}))
    return Corpus(experiment, [spec(name) for name in names])


@pytest.mark.parametrize("width", ["u1", "<u2", "<u4"])
def test_ids_of_every_width_are_windows_of_the_same(tmp_path, width):
    ids = np.arange(100)
    batch = corpus(tmp_path, ids, ("ids", "targets"), width).read(np.array([0, 3]))
    starts = np.array([[0], [18]])
    assert np.array_equal(batch.tensors["ids"], starts + np.arange(6))
    assert np.array_equal(batch.tensors["targets"], starts + np.arange(1, 7))


def test_ids_above_16_bits_stay_what_they_are(tmp_path):
    ids = np.full(50, 100_000)
    data = corpus(tmp_path, ids, ("ids", "targets"), "<u4")
    assert (data.read(np.arange(2)).tensors["ids"] == 100_000).all()
    with pytest.raises(ConfigError, match="100001 different tokens"):
        data.check_vocabulary([(65_536, 8)])


def test_two_inputs_without_names_are_ids_and_targets(tmp_path):
    ids = np.arange(100)
    named = corpus(tmp_path, ids, ("targets", "ids")).read(np.arange(2)).tensors
    other = corpus(tmp_path, ids, ("arg3", "arg4")).read(np.arange(2)).tensors
    assert np.array_equal(named["ids"], other["arg3"])
    assert np.array_equal(named["targets"], other["arg4"])


def test_labels_of_hugging_face_are_not_shifted(tmp_path):
    ids, names = np.arange(100), ("input_ids", "labels")
    batch = corpus(tmp_path, ids, names).read(np.arange(2)).tensors
    assert np.array_equal(batch["input_ids"], batch["labels"])


NAMES = ("ids", "targets", "documents", "positions", "loss_mask", "labels")
documents = st.lists(st.integers(0, 9), min_size=2, max_size=12)


@settings(max_examples=40)
@given(documents, st.integers(0, 1 << 16))
def test_windows_say_where_documents_are(tmp_path_factory, lengths, seed):
    folder = tmp_path_factory.mktemp("w")
    ids = [x for n in [*lengths, 40] for x in [*range(1, n + 1), END]]
    mask = np.random.default_rng(seed).integers(0, 2, len(ids))
    data = corpus(folder, ids, NAMES, mask=mask, separator=END)
    document = np.concatenate([[0], np.cumsum(np.array(ids) == END)])
    for position in range(data.samples):
        found = {k: v[0] for k, v in data.read(np.array([position])).tensors.items()}
        start = 6 * position
        for i in range(BLOCK):
            same = document[start + i] == document[start + i + 1]
            counts = bool(same and mask[start + i + 1])
            assert found["ids"][i] == ids[start + i]
            assert found["targets"][i] == ids[start + i + 1]
            assert found["loss_mask"][i] == counts
            before = np.flatnonzero(
                document[start : start + i + 1] == document[start + i]
            )
            assert found["positions"][i] == i - before[0]
            assert found["documents"][i] == document[start + i] - document[start]
            if i + 1 < BLOCK:
                assert found["labels"][i + 1] == (
                    ids[start + i + 1] if counts else -100
                )


@settings(max_examples=40)
@given(st.lists(st.integers(0, 30), min_size=8, max_size=20))
def test_packed_documents_have_each_target_once(tmp_path_factory, lengths):
    """Pairs of a token and its successor within a document, of numbered tokens."""
    folder = tmp_path_factory.mktemp("p")
    numbers = iter(range(1, 10_000))
    texts = [[*(next(numbers) for _ in range(n)), END] for n in (*lengths, 9, 9)]
    data = corpus(folder, [*chain(*texts)], NAMES, separator=END, packing="documents")
    wanted = sorted(p for t in texts for p in pairwise(t))
    found = []
    for index in range(len(data.dataset)):
        row = data.dataset.sample(index)
        kept = row["loss_mask"]
        assert len(row["ids"]) == BLOCK
        assert (row["documents"][kept] >= 0).all()
        assert (row["documents"] >= 0).tolist() == row["attention_mask"].tolist()
        found += zip(
            row["ids"][kept].tolist(), row["targets"][kept].tolist(), strict=True
        )
        shifted = [(a, b) for a, b in zip(row["ids"], row["labels"][1:], strict=False)]
        assert [p for p in shifted if p[1] != -100] == [
            p
            for p, k in zip(
                zip(row["ids"], row["targets"], strict=True), kept, strict=True
            )
            if k
        ]
    assert sorted(found) == wanted


def test_whole_documents_are_not_cut(tmp_path):
    ids = [1, 2, 0, 3, 4, 0, 5, 6, 7, 8, 9, 0, 1, 0]
    data = corpus(tmp_path, ids, NAMES, separator=END, packing="documents")
    rows = [data.dataset.sample(i)["ids"].tolist() for i in range(len(data.dataset))]
    assert rows == [[1, 2, 0, 3, 4, 0], [5, 6, 7, 8, 9, 0], [1, 0, 0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"packing": "documents"}, "say the id that ends one"),
        ({"mask": [1, 1]}, "has 2 bytes, and the data 100 tokens"),
    ],
)
def test_what_does_not_fit_is_told(tmp_path, data, said):
    with pytest.raises(ConfigError, match=said):
        corpus(tmp_path, np.arange(100), NAMES, **data)


def test_a_program_without_ids_is_refused(tmp_path):
    (tmp_path / "text").write_text("words " * 99)
    experiment = parse(BASE | {"data_path": str(tmp_path / "text")})
    with pytest.raises(ConfigError, match=r"takes none: its data are x: \[2, 6\] f32"):
        Corpus(experiment, [spec("x", "f32")])


def test_the_digest_covers_the_mask(tmp_path):
    ids, mask = np.arange(100), np.ones(100)
    before = corpus(tmp_path, ids, NAMES, mask=mask)
    mask[50] = 0
    after = corpus(tmp_path, ids, NAMES, mask=mask)
    assert before.digest != after.digest
    assert after.difference(before.parts) == "they differ in mask"


def test_an_older_digest_of_the_same_file_is_known(tmp_path):
    data = corpus(tmp_path, np.arange(100), ("ids", "targets"))
    older = sampled_digest(np.fromfile(tmp_path / "ids", np.uint8))
    assert data.is_of(older)
    assert data.is_of(data.digest)
    assert not data.is_of("0" * 64)


def test_text_by_a_tokenizer_of_hugging_face(tmp_path):
    library = pytest.importorskip("tokenizers")
    model = library.models.WordLevel({"a": 0, "b": 1, "c": 2}, unk_token="a")
    tokenizer = library.Tokenizer(model)
    tokenizer.pre_tokenizer = library.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "text").write_text("a b c\n" * 2000)
    given = {
        "data_path": str(tmp_path / "text"),
        "sampling": "fifo",
        "data": {"tokenizer_path": str(tmp_path / "tokenizer.json")},
    }
    data = Corpus(parse(BASE | given), token_inputs(BATCH, BLOCK))
    assert data.tokenizer == {"kind": "huggingface", "file": "tokenizer.json"}
    rows = data.read(np.array([0, 300])).tensors
    assert rows["ids"].tolist() == [[0, 1, 2] * 2] * 2
    assert rows["targets"].tolist() == [[1, 2, 0] * 2] * 2
    with pytest.raises(ConfigError, match="3 different tokens"):
        data.check_vocabulary([(2, 2)])
