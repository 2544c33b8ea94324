"""Each format: samples by number, a digest of all of it, and what it refuses."""

import io
import json
import tarfile
from typing import Any

import numpy as np
import pytest

from pcp.errors import ConfigError, MissingPackage
from pcp.manifest import TensorSpec
from pcp.training.config.experiment_file import (
    parse,
)
from pcp.training.data.corpus import Corpus
from pcp.training.data.dataset import Source
from pcp.training.data.formats import table, tables
from pcp.training.data.formats.table import format_of, open_dataset

BASE = {"model_path": "m.mlir", "learning_rate": 0.1, "tau": 2, "outer_loop_steps": 3}
ROWS, BATCH = 10, 2
X = np.arange(ROWS * 3, dtype=np.float32).reshape(ROWS, 3)
Y = np.arange(ROWS)


def spec(name, *shape, dtype="f32"):
    """A program's input, of samples of a shape."""
    return TensorSpec(name=name, role="data", shape=(BATCH, *shape), dtype=dtype)


REGRESSION = (spec("x", 3), spec("y", dtype="i64"))


def source(path, inputs=REGRESSION, **keys) -> Source:
    """A dataset's path, as an experiment with these keys has it."""
    experiment = parse({**BASE, "data_path": str(path), **keys})
    return Source(str(path), experiment, tuple(inputs))


def corpus(path, inputs=REGRESSION, **keys) -> Corpus:
    """Its samples in the run's order."""
    return Corpus(source(path, inputs, **keys).experiment, inputs)


def npz(folder):
    np.savez(folder / "d.npz", x=X, y=Y, more=np.zeros(3))
    return folder / "d.npz"


def compressed(folder):
    np.savez_compressed(folder / "d.npz", x=X, y=Y)
    return folder / "d.npz"


def npy(folder):
    (folder / "d").mkdir()
    np.save(folder / "d/x.npy", X)
    np.save(folder / "d/y.npy", Y)
    return folder / "d"


def parquet(folder):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = arrow.table({"x": list(X), "y": Y, "more": ["text"] * ROWS})
    parquet.write_table(rows, folder / "d.parquet", row_group_size=4)
    return folder / "d.parquet"


def arrow(folder):
    arrow = pytest.importorskip("pyarrow")
    flat = arrow.array(X.ravel())
    rows = arrow.table({"x": arrow.FixedSizeListArray.from_arrays(flat, 3), "y": Y})
    with arrow.ipc.new_file(folder / "d.arrow", rows.schema) as out:
        out.write_table(rows, max_chunksize=4)
    return folder / "d.arrow"


def arrow_stream(folder):
    arrow = pytest.importorskip("pyarrow")
    tensors = arrow.FixedShapeTensorArray.from_numpy_ndarray(X)
    rows = arrow.table({"x": tensors, "y": Y})
    with arrow.ipc.new_stream(folder / "d.arrow", rows.schema) as out:
        out.write_table(rows, max_chunksize=4)
    return folder / "d.arrow"


def add(archive, name, content):
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def tar(folder):
    with tarfile.open(folder / "d.tar", "w") as archive:
        for i in range(ROWS):
            row = io.BytesIO()
            np.save(row, X[i])
            add(archive, f"a/{i:03}.x.npy", row.getvalue())
            add(archive, f"a/{i:03}.y.cls", b"%d" % Y[i])
    return folder / "d.tar"


OWN = """
import numpy as np

class Rows:
    digest = "rows of numbers"

    def __len__(self):
        return 10

    def sample(self, i):
        if i == {bad}:
            raise KeyError("no such row")
        return {{"x": np.arange(3 * i, 3 * i + 3, dtype=np.float32), "y": np.array(i)}}

def made():
    return Rows()

kept = Rows()
"""


def python(folder, name="Rows", bad=-1):
    (folder / "own.py").write_text(OWN.format(bad=bad))
    return f"{folder / 'own.py'}:{name}"


def huggingface(folder):
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"x": X.tolist(), "y": Y.tolist()})
    rows.save_to_disk(folder / "d")
    return folder / "d"


NAMED = {
    "npz": npz,
    "compressed": compressed,
    "npy": npy,
    "parquet": parquet,
    "arrow": arrow,
    "arrow_stream": arrow_stream,
    "tar": tar,
    "python": python,
    "huggingface": huggingface,
}
COLUMNS = {"tar": {"columns": {"x": "x.npy", "y": "y.cls"}}}


@pytest.fixture(params=NAMED, ids=str)
def written(request, tmp_path):
    """A path of each format with the rows of X and Y, and the keys it needs."""
    path = NAMED[request.param](tmp_path)
    keys = {"data": COLUMNS[request.param]} if request.param in COLUMNS else {}
    return path, keys


def test_every_format_has_the_same_samples(written):
    path, keys = written
    data = corpus(path, sampling="fifo", validation_fraction=0.2, **keys)
    assert data.samples == 8
    batch = data.read(np.array([3, 0])).tensors
    np.testing.assert_array_equal(batch["x"], X[[3, 0]])
    np.testing.assert_array_equal(batch["y"], Y[[3, 0]])
    np.testing.assert_array_equal(data.validation(0).tensors["y"], Y[8:])


def test_the_largest_id_is_known_before_a_sample_is_taken(written):
    path, keys = written
    data = corpus(path, **keys)
    opened: Any = data.dataset
    largest = opened.largest
    if ".py:" in str(path):  # it says nothing of itself
        assert largest("y") is None
        return
    columns = keys.get("data", {}).get("columns", {"x": "x", "y": "y"})
    assert largest(columns["y"]) == Y.max()
    assert largest(columns["x"]) is None  # no integers
    data.check_rows({"y": int(Y.max()) + 1})
    with pytest.raises(ConfigError, match=f"has the id {Y.max()} in "):
        data.check_rows({"y": int(Y.max())})


def test_the_largest_of_lists_is_that_of_all_their_numbers():
    arrow = pytest.importorskip("pyarrow")
    kind = arrow.list_(arrow.list_(arrow.int64()))
    ids = arrow.array([[[1, 2], [3, 9]], [[4, 5], [6, 7]]], kind)
    fixed = arrow.FixedSizeListArray.from_arrays(arrow.array([8, 1, 2, 3]), 2)
    tensors = arrow.FixedShapeTensorArray.from_numpy_ndarray(np.arange(4).reshape(2, 2))
    table = arrow.table({"ids": ids, "fixed": fixed, "tensors": tensors})
    flat = [tables._flat(table.column(n).chunks[0]) for n in table.column_names]
    assert [int(each.max()) for each in flat] == [9, 8, 3]


def test_a_digest_is_the_same_again_and_another_of_other_data(written, tmp_path):
    path, keys = written
    before = corpus(path, **keys).digest
    assert corpus(path, **keys).digest == before
    files = [p for p in tmp_path.rglob("*") if p.is_file() and p.suffix != ".json"]
    (tmp_path / "other").mkdir()
    changed = files[0].read_bytes()
    files[0].write_bytes(changed + b"\n")
    if not str(path).endswith(("arrow", "parquet", "npz")):
        assert corpus(path, **keys).digest != before


def test_random_order_trains_on_each_sample_once_and_holds_others_out(tmp_path):
    data = corpus(npz(tmp_path), seed=5, validation_fraction=0.2)
    seen = data.order.indices(np.arange(data.samples))
    later = data.order.indices(np.arange(data.samples) + data.samples)
    held = data.order.validation(np.arange(data.order.held_out))
    assert sorted([*seen, *held]) == list(range(ROWS))
    assert sorted(seen) == sorted(later)
    assert seen.tolist() != later.tolist()
    assert held.tolist() != [8, 9]  # else a sorted dataset would lose a class


@pytest.mark.parametrize("name", ["Rows", "made", "kept"])
def test_a_class_a_function_or_an_object_is_a_dataset(tmp_path, name):
    assert len(open_dataset(source(python(tmp_path, name)))) == ROWS


def test_the_digest_of_ones_own_covers_the_code(tmp_path):
    before = corpus(python(tmp_path)).digest
    assert corpus(python(tmp_path, bad=3)).digest != before


def test_what_a_sample_raises_is_said_with_its_number_and_place(tmp_path):
    data = corpus(python(tmp_path, bad=7), sampling="fifo")
    data.read(np.arange(6))
    line = OWN.splitlines().index('            raise KeyError("no such row")') + 1
    where = rf"sample 7 raises KeyError: 'no such row' \(.*own.py:{line}\)"
    with pytest.raises(ConfigError, match=where):
        data.read(np.array([7]))


BAD_OWN = [
    ("class D:\n  def __len__(self): return 3", "has no 'digest'"),
    ("class D:\n  digest = 'x'", r"raises TypeError: .* no len"),
    ("class D:\n  digest = 'x'\n  def __len__(self): return 3", "has no 'sample'"),
    ("class D:\n  def __init__(self): 1 / 0", "raises ZeroDivisionError"),
    ("class E: pass", "has no 'D'"),
    ("import nothing_like_it", "raises ModuleNotFoundError"),
]


@pytest.mark.parametrize(("code", "said"), BAD_OWN)
def test_a_dataset_that_is_none_says_what_it_lacks(tmp_path, code, said):
    (tmp_path / "d.py").write_text(code)
    with pytest.raises(ConfigError, match=said):
        corpus(f"{tmp_path / 'd.py'}:D")


# What does not fit ------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "data", "said"),
    [
        ([spec("xs", 3), REGRESSION[1]], {}, r"no 'xs' for .* Did you mean 'x'"),
        (REGRESSION, {"columns": {"z": "x"}}, "the program takes no 'z'"),
        (REGRESSION, {"columns": {"x": "yy"}}, "no 'yy' for the program's 'x'"),
        ([spec("x", 4), REGRESSION[1]], {}, r"x has the shape \[3\], .* takes \[4\]"),
        ([spec("x", 3, dtype="i32"), REGRESSION[1]], {}, "holds float32, .* i32"),
        (REGRESSION, {"separator": 3}, "separator: is for the format tokens"),
        (REGRESSION, {"format": "npzz"}, "no format 'npzz'.* Did you mean 'npz'"),
    ],
)
def test_what_cannot_fit_is_told_in_one_line(tmp_path, inputs, data, said):
    with pytest.raises(ConfigError, match=said) as error:
        corpus(npz(tmp_path), inputs, data=data)
    assert "\n" not in str(error.value)


def test_samples_are_filled_up_and_cut_where_that_was_asked(tmp_path):
    path = npz(tmp_path)
    wide, narrow = [spec("x", 5), REGRESSION[1]], [spec("x", 2), REGRESSION[1]]
    filled = corpus(path, wide, sampling="fifo", data={"pad": {"x": -1}})
    row = filled.read(np.array([1])).tensors["x"]
    assert row.tolist() == [[3, 4, 5, -1, -1]]
    cut = corpus(path, narrow, sampling="fifo", data={"truncate": True})
    assert cut.read(np.array([1])).tensors["x"].tolist() == [[3, 4]]


def test_arrays_of_unequal_lengths_are_refused(tmp_path):
    np.savez(tmp_path / "d.npz", x=X, y=Y[:4])
    with pytest.raises(ConfigError, match=r"unequal lengths \(x: 10, y: 4\)"):
        corpus(tmp_path / "d.npz")


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.asfortranarray(X), "in C order"),
        (np.array([{}, {}]), "rows of an array of numbers"),
        (np.float32(3), "rows of an array of numbers"),
        (X[:0], "is empty"),
        (X[:1], "has 1 sample: those for training are less than one batch of 2"),
    ],
)
def test_an_array_that_has_no_rows_is_refused(tmp_path, array, said):
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(ConfigError, match=said):
        corpus(tmp_path / "x.npy", REGRESSION[:1])


@pytest.mark.parametrize("suffix", ["npz", "npy", "tar", "parquet", "arrow"])
def test_a_file_that_is_not_what_its_name_says_is_refused(tmp_path, suffix):
    if suffix in ("parquet", "arrow"):
        pytest.importorskip("pyarrow")
    (tmp_path / f"d.{suffix}").write_bytes(b"something else" * 100)
    with pytest.raises(ConfigError, match=rf"d\.{suffix}"):
        corpus(tmp_path / f"d.{suffix}")


def test_a_null_is_refused_where_it_is_read(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = arrow.table({"x": list(X), "y": [*Y[:-1].tolist(), None]})
    parquet.write_table(rows, tmp_path / "d.parquet")
    data = corpus(tmp_path / "d.parquet", sampling="fifo", validation_fraction=0)
    with pytest.raises(ConfigError, match=r"sample 9 raises ValueError: .* null"):
        data.read(np.array([9]))


def test_a_change_is_found_before_the_sample_is_used(tmp_path):
    path = npz(tmp_path)
    data = corpus(path, sampling="fifo", validation_fraction=0)
    content = bytearray(path.read_bytes())
    content[content.index(X[5].tobytes())] ^= 1
    fresh = corpus(path, sampling="fifo", validation_fraction=0)
    path.write_bytes(content)
    assert data.digest == fresh.digest
    later = corpus(path, sampling="fifo", validation_fraction=0)
    assert later.digest != data.digest


def test_a_package_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "find_spec", lambda name: None)
    (tmp_path / "d.parquet").write_bytes(b"")
    with pytest.raises(
        MissingPackage, match=r"needs pyarrow .*pip install .*\[arrow\]"
    ):
        corpus(tmp_path / "d.parquet")


# Pictures -----------------------------------------------------------------------


@pytest.fixture
def pictures(tmp_path):
    """Two classes of 8x6 pictures, each of one colour."""
    image = pytest.importorskip("PIL.Image")
    for number in range(6):
        folder = tmp_path / "p" / f"class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        image.new("RGB", (8, 6), (number * 10, 255, 0)).save(folder / f"{number}.png")
    return tmp_path / "p"


@pytest.mark.parametrize(
    ("shape", "dtype", "pixel"),
    [
        ((3, 6, 8), "f32", [20 / 255, 1, 0]),
        ((6, 8, 3), "f32", [20 / 255, 1, 0]),
        ((3, 12, 4), "ui8", [20, 255, 0]),
        ((6, 8), "ui8", [156]),  # of ITU-R 601: 0.299 R + 0.587 G + 0.114 B
    ],
)
def test_pictures_come_as_the_program_takes_them(pictures, shape, dtype, pixel):
    inputs = [spec("image", *shape, dtype=dtype), spec("label", dtype="i64")]
    data = corpus(pictures, inputs, sampling="fifo", validation_fraction=0)
    batch = data.read(np.array([1, 4])).tensors
    assert batch["label"].tolist() == [0, 1]  # files by the names of their classes
    array = batch["image"][0]
    found = array[:, 0, 0] if shape[0] == 3 else np.atleast_1d(array[0, 0])
    np.testing.assert_allclose(found, pixel, atol=1e-6)


def test_pictures_are_normalised_by_channel(pictures):
    inputs = [spec("image", 3, 6, 8)]
    data = {"image_mean": [0, 0.5, 0.5], "image_deviation": [1, 0.5, 0.25]}
    batch = corpus(pictures, inputs, sampling="fifo", data=data).read(np.array([0]))
    assert batch.tensors["image"][0, :, 0, 0].tolist() == [0, 1, -2]
    with pytest.raises(ConfigError, match="1 numbers for pictures of 3 channels"):
        corpus(pictures, inputs, data={"image_mean": [0.5]})


def test_pictures_with_a_table_of_what_belongs_to_them(pictures):
    lines = [
        {"file_name": f"class{n % 2}/{n}.png", "ids": [n, n + 1]} for n in (4, 1, 0)
    ]
    text = "\n".join(map(json.dumps, lines))
    (pictures / "metadata.jsonl").write_text(text)
    inputs = [spec("image", 6, 8, 3, dtype="ui8"), spec("ids", 2, dtype="i32")]
    data = corpus(pictures, inputs, sampling="fifo", validation_fraction=0)
    batch = data.read(np.array([0, 1])).tensors
    assert batch["ids"].tolist() == [[4, 5], [1, 2]]
    assert batch["image"][:, 0, 0, 0].tolist() == [40, 10]
    (pictures / "metadata.jsonl").write_text('{"file_name": "none.png"}')
    with pytest.raises(ConfigError, match=r"line 1: there is no file 'none.png'"):
        corpus(pictures, inputs)


def test_a_program_of_no_pictures_is_refused(pictures):
    with pytest.raises(ConfigError, match=r"takes \[5, 6, 7\] of each sample"):
        corpus(pictures, [spec("image", 5, 6, 7)])


# Which format ---------------------------------------------------------------------


def test_a_path_is_of_the_format_that_its_name_says(tmp_path):
    def named(path, **keys):
        return format_of(source(path, **keys).experiment, str(path)).name

    (tmp_path / "d.npz").write_bytes(b"")
    assert named(tmp_path / "d.npz") == "npz"
    assert named(tmp_path / "d.npz", tokenizer="byte") == "tokens"  # as before
    assert named(tmp_path / "d.npz", data={"format": "tokens"}) == "tokens"
    assert named(tmp_path / "text") == "tokens"
    assert named("builtin:python-docs") == "tokens"
    assert named("a/b.py:Dataset") == "python"
    assert named("huggingface:squad") == "huggingface"
