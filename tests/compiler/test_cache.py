"""The cache gives back what it was given, or nothing."""

import os
from pathlib import Path

import pytest

from pcp.compiler.cache import Cache, key


def test_key_depends_on_everything_and_on_where_it_ends() -> None:
    keys = [
        key("text", ["-a", "-b"], "3.13"),
        key("texts", ["-a", "-b"], "3.13"),
        key("text", ["-b", "-a"], "3.13"),
        key("text", ["-a-b"], "3.13"),
        key("text", ["-a", "-b"], "3.14"),
        key("-btext", ["-a"], "3.13"),
    ]
    assert len(set(keys)) == len(keys)
    assert keys[0] == key("text", ("-a", "-b"), "3.13")


def test_round_trip(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "deep" / "er")
    assert cache.get("ab12") is None
    cache.put("ab12", b"body\nwith lines")
    assert cache.get("ab12") == b"body\nwith lines"
    cache.put("ab12", b"new")
    assert cache.get("ab12") == b"new"


@pytest.mark.parametrize("damage", [b"", b"x", b"\n", b"0" * 64 + b"\nbody"])
def test_a_damaged_entry_counts_as_absent(tmp_path: Path, damage: bytes) -> None:
    cache = Cache(tmp_path)
    cache.put("ab12", b"body")
    (path,) = tmp_path.glob("*/ab12*")
    path.write_bytes(damage)
    assert cache.get("ab12") is None
    cache.put("ab12", b"body")
    assert cache.get("ab12") == b"body"


def test_a_failed_write_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(tmp_path)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        cache.put("ab12", b"body")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path, max_bytes=300)
    for age, name in enumerate(["aa1", "bb2"]):
        cache.put(name, bytes(50))
        (path,) = tmp_path.glob(f"*/{name}*")
        os.utime(path, (1000 + age, 1000 + age))
    assert cache.get("aa1") is not None  # used now: newer than bb2
    cache.put("cc3", bytes(50))
    assert cache.get("bb2") is None
    assert cache.get("aa1") is not None
    assert cache.get("cc3") is not None


def test_one_entry_larger_than_the_bound_is_kept(tmp_path: Path) -> None:
    cache = Cache(tmp_path, max_bytes=10)
    cache.put("ab12", bytes(50))
    assert cache.get("ab12") == bytes(50)
