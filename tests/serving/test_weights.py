"""Weights of a folder as arguments: shapes, rows, types, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from pcp.errors import ConfigError
from pcp.manifest import TensorSpec
from pcp.mesh import Mesh
from pcp.serving.weights import flattens, mapped, read
from pcp.training.storage import safetensors_io


def _spec(name: str, *shape: int, cut: tuple[tuple[str, ...], ...] = ()) -> TensorSpec:
    return TensorSpec(name=name, role="frozen", shape=shape, dtype="f32", sharding=cut)


def _saved(folder: Path, **arrays: np.ndarray) -> Path:
    with open(folder / "model.safetensors", "wb") as file:
        safetensors_io.write(file, arrays)
    return folder


def test_heads_become_dimensions_and_rows_are_taken(tmp_path: Path) -> None:
    w = np.arange(24 * 5, dtype=np.float16).reshape(24, 5)
    files = mapped(_saved(tmp_path, w=w))
    wanted = [_spec("w", 2, 3, 4, 5), _spec("w[6:12]", 6, 5)]
    found = dict(read(files, wanted, tmp_path))
    np.testing.assert_array_equal(found["w"], w.reshape(2, 3, 4, 5))
    np.testing.assert_array_equal(found["w[6:12]"], w[6:12])
    assert {a.dtype for a in found.values()} == {np.dtype(np.float32)}


def test_tensors_are_stacked_and_cut(tmp_path: Path) -> None:
    """Experts of the files are one parameter; a file of parts has it by its name."""
    each = {f"e.{n}.w": np.full((2, 3), n, np.float32) for n in range(3)}
    files = mapped(_saved(tmp_path, **each))
    mesh, whole = Mesh("m", {"tp": 2}), np.stack([*each.values()])
    rows, experts = ((), ("tp",), ()), (("tp",), (), ())
    for cut, place, wanted in (
        (rows, 1, whole[:, 1:]),
        (experts, 0, whole[:2]),
        ((), 0, whole),
    ):
        spec = _spec("e.[0:3].w", 3, 2, 3, cut=cut)
        found = dict(read(files, [spec], tmp_path, mesh, {"tp": place}))
        np.testing.assert_array_equal(found["e.[0:3].w"], wanted)
    parts = mapped(_saved(tmp_path, **{"e.[0:3].w": whole}))
    found = dict(read(parts, [_spec("e.[0:3].w", 3, 2, 3)], tmp_path))
    np.testing.assert_array_equal(found["e.[0:3].w"], whole)


def test_members_of_a_mesh_have_their_parts(tmp_path: Path) -> None:
    w = np.arange(3 * 4 * 2, dtype=np.float32).reshape(12, 2)
    files = mapped(_saved(tmp_path, w=w))
    mesh = Mesh("m", {"tp": 2})
    spec = _spec("w", 3, 4, 2, cut=(("tp",), (), ()))
    parts = [
        dict(read(files, [spec], tmp_path, mesh, place))["w"] for place in mesh.members
    ]
    assert [p.shape for p in parts] == [(2, 4, 2), (1, 4, 2)]
    np.testing.assert_array_equal(np.concatenate(parts), w.reshape(3, 4, 2))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (_spec("v", 4, 2), r"have no v\."),
        (_spec("w", 2, 4), r"w is \[4, 2\] in the files, and \[2, 4\] by config"),
        (_spec("w[2:6]", 4, 2), r"\[2:6\] is \[2, 2\]"),
        (_spec("e.[0:2].w", 2, 4, 2), r"have no e\.0\.w, e\.1\.w"),
    ],
)
def test_what_does_not_fit_is_named(
    spec: TensorSpec, message: str, tmp_path: Path
) -> None:
    files = mapped(_saved(tmp_path, w=np.zeros((4, 2), np.float32)))
    with pytest.raises(ConfigError, match=message):
        list(read(files, [_spec("w", 4, 2), spec], tmp_path))


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"neither model\.safetensors nor"):
        mapped(tmp_path)


def test_flattening() -> None:
    assert flattens((2, 3, 4), (6, 4))
    assert flattens((2, 3), (2, 3))
    assert flattens((1, 8), (8,))
    assert flattens((8, 1), (8,))
    assert flattens((), ())
    assert not flattens((2, 3, 4), (4, 6))
    assert not flattens((2, 3), (3, 2))
    assert not flattens((2, 3), (2,))
    assert not flattens((6,), (2, 3))
