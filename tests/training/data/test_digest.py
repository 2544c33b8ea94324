"""The digest of the data: all bytes count, and where two copies differ is said."""

import hashlib
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcp.errors import ConfigError
from pcp.training.data import digest
from pcp.training.data.digest import LEAF, difference, kept_at, of_bytes, of_path
from pcp.training.data.tokens import sampled_digest
from pcp.training.data.verified_file import VerifiedFile

SIZE = 3 * LEAF + 17


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A file of four leaves, of which the tree is kept."""
    monkeypatch.setattr(digest, "KEPT_FROM_BYTES", 0)
    path = tmp_path / "data"
    path.write_bytes(np.random.default_rng(0).bytes(SIZE))
    return path


def _change(path, at, keep_times=False):
    before = path.stat()
    with open(path, "r+b") as out:
        out.seek(at)
        (byte,) = out.read(1)
        out.seek(at)
        out.write(bytes([byte ^ 1]))
    if keep_times:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_leaf_is_the_sha256_of_its_bytes(file):
    (found,) = of_path(file).files
    content = file.read_bytes()
    leaves = [content[at : at + LEAF] for at in range(0, SIZE, LEAF)]
    assert found.leaves == b"".join(hashlib.sha256(x).digest() for x in leaves)
    assert of_path(file).root == of_bytes(content).root
    assert len(of_path(file).root) == 64


@settings(max_examples=20)
@given(st.integers(0, SIZE - 1))
def test_one_changed_byte_anywhere_is_another_digest(at):
    content = bytearray(SIZE)
    before = of_bytes(bytes(content))
    content[at] = 1
    after = of_bytes(bytes(content))
    assert before.root != after.root
    first, last = at // LEAF * LEAF, min(at // LEAF * LEAF + LEAF, SIZE) - 1
    told = difference(after.parts(), before.parts())
    assert told == f"they differ in bytes {first} to {last}"


def test_what_the_older_digest_did_not_see(tmp_path):
    """Of 256 MiB it read 64: here of what is as sparse as a test may be."""
    content = np.zeros(65 << 20, np.uint8)
    older, newer = sampled_digest(content), of_bytes(content.data).root
    content[(1 << 20) + 5] = 1  # between two of its blocks
    assert sampled_digest(content) == older
    assert of_bytes(content.data).root != newer


def test_a_kept_tree_is_taken_while_the_file_is_as_it_was(file, monkeypatch):
    made = of_path(file)
    assert kept_at(file).exists()
    with monkeypatch.context() as patch:
        patch.setattr(digest, "_leaves", None)  # nothing is read
        assert of_path(file) == made
    _change(file, 2 * LEAF + 5, keep_times=True)
    assert of_path(file).root != made.root


@pytest.mark.parametrize("cut", [10, -5])
def test_a_kept_tree_that_is_damaged_is_made_again(file, cut):
    made = of_path(file)
    content = kept_at(file).read_bytes()
    kept_at(file).write_bytes(content[:cut])
    assert of_path(file) == made
    assert kept_at(file).read_bytes() == content


def test_a_kept_tree_of_another_file_does_not_count(file, tmp_path):
    of_path(file)
    copy = tmp_path / "copy"
    copy.write_bytes(file.read_bytes()[::-1])
    kept_at(copy).write_bytes(kept_at(file).read_bytes())
    assert of_path(copy).root == of_bytes(copy.read_bytes()).root


def test_a_folder_that_takes_no_file_goes_without(file, monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(os, "replace", refuse)
    of_path(file)
    assert [p.name for p in file.parent.iterdir()] == ["data"]


def test_small_data_leave_no_file_behind(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(b"text")
    of_path(path)
    assert not kept_at(path).exists()


def test_the_range_of_ids_comes_with_the_digest(file, monkeypatch):
    ids = np.arange(LEAF, dtype="<u4") + 7
    file.write_bytes(ids.tobytes())
    of_path(file)  # kept, without a range
    assert of_path(file, "<u4").files[0].range == ("<u4", 7, LEAF + 6)
    monkeypatch.setattr(digest, "_leaves", None)
    assert of_path(file, "<u4").files[0].range == ("<u4", 7, LEAF + 6)


def test_a_folder_is_its_files_and_their_names(tmp_path):
    folder = tmp_path / "data"
    for name in ("b/2", "a/1", "a/.hidden", "a/1.pcp-digest"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    tree = of_path(folder)
    assert [f.name for f in tree.files] == ["a/1", "b/2"]
    (folder / "b/2").rename(folder / "b/3")
    told = difference(of_path(folder).parts(), tree.parts())
    assert told in ("b/3 is here alone", "b/2 is missing here")
    (folder / "b/3").rename(folder / "b/2")
    (folder / "a/1").write_bytes(b"other")
    assert difference(of_path(folder).parts(), tree.parts()) == "they differ in a/1"


def test_parts_are_few_and_cover_everything(tmp_path):
    for number in range(40):
        (tmp_path / f"{number:02}").write_bytes(b"%d" % number)
    tree = of_path(tmp_path)
    assert len(tree.parts(7)) == 7
    (tmp_path / "39").write_bytes(b"x")
    told = difference(of_path(tmp_path).parts(7), tree.parts(7))
    assert told == "they differ in 4 files from 36 to 39"


def test_another_size_is_told_first():
    one, other = of_bytes(bytes(5)), of_bytes(bytes(6))
    assert difference(one.parts(), other.parts()) == "they differ in the size"


@pytest.mark.parametrize("at", [0, LEAF - 1, LEAF, 2 * LEAF + 99, SIZE - 1])
def test_a_changed_byte_is_found_when_it_is_read(file, at):
    """However it was changed: even its times, and the tree beside it, say nothing."""
    (leaves,) = of_path(file).files
    _change(file, at, keep_times=True)
    verified = VerifiedFile(file, leaves)
    with pytest.raises(
        ConfigError, match=f"data was changed: bytes {at // LEAF * LEAF}"
    ):
        verified.check(at, at + 1)
    other = (at + LEAF) % SIZE // LEAF * LEAF
    assert (
        bytes(verified.view(other, other + 8)) == file.read_bytes()[other : other + 8]
    )


def test_a_leaf_is_hashed_once(file, monkeypatch):
    verified = VerifiedFile(file, of_path(file).files[0])
    verified.check(5, SIZE)
    monkeypatch.setattr(hashlib, "sha256", None)
    verified.check(0, SIZE)


def test_a_shorter_file_is_found_when_it_is_opened(file):
    (leaves,) = of_path(file).files
    with open(file, "r+b") as out:
        out.truncate(LEAF)
    with pytest.raises(ConfigError, match="was changed"):
        VerifiedFile(file, leaves)


def test_others_readers_read_checked_bytes(file):
    verified = VerifiedFile(file, of_path(file).files[0])
    content = file.read_bytes()
    with verified.open() as reader:
        assert reader.read(10) == content[:10]
        reader.seek(-20, os.SEEK_END)
        assert reader.read() == content[-20:]
        assert reader.read() == b""
        assert reader.tell() == SIZE
    _change(file, LEAF + 1, keep_times=True)
    fresh = VerifiedFile(file, verified.digest)
    with fresh.open() as reader, pytest.raises(ConfigError, match="was changed"):
        reader.read()


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"data_path: cannot read .*none"):
        of_path(tmp_path / "none")
