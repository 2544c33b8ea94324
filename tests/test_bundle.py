"""The bundle file: what is written is what is read, and nothing else is."""

import io
import json
import os
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcp.bundle import (
    MANIFEST,
    Bundle,
    Collective,
    DeviceProgram,
    Function,
    Manifest,
    Method,
    Module,
    Parameter,
    TensorSpec,
    sha256,
    tensor_bytes,
)
from pcp.errors import BundleError

W = TensorSpec(name="w", role="param", shape=(2, 3), dtype="f32")
X = TensorSpec(name="x", role="data", shape=(4,), dtype="i64")
LOSS = TensorSpec(name="loss", role="loss", shape=(), dtype="f32")


def small_manifest() -> Manifest:
    return Manifest(
        producer={"pcp": "0.1.0"},
        mode="train",
        functions={"main": Function(inputs=(W, X), results=(LOSS,), donates=(0,))},
        parameters=(Parameter(name="w", init="zeros", shape=(2, 3), dtype="f32"),),
        collectives={
            "all_reduce_0_f32_6": Collective(
                kind="all_reduce", reduction="sum", shape=(6,), dtype="f32", bytes=24
            )
        },
        optimizer=Method(kind="adamw", hyper={"lr": 1e-3}),
        modules={
            "cpu": Module(
                file="modules/cpu.vmfb",
                target="cpu",
                backend="llvm-cpu",
                driver="local-task",
            )
        },
    )


def small_bundle() -> Bundle:
    return Bundle.build(
        small_manifest(), {"modules/cpu.vmfb": b"code", "ir/main.mlir": b"module {}"}
    )


def rezip(content: bytes, change: dict[str, bytes | None], **extra: object) -> bytes:
    """The same zip with members replaced, added, or (None) removed."""
    out = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(content)) as old,
        zipfile.ZipFile(out, "w", extra.get("compression", zipfile.ZIP_STORED)) as new,  # pyright: ignore[reportArgumentType, reportCallIssue]
    ):
        names = dict.fromkeys([*old.namelist(), *change])
        for name in names:
            body = change.get(name, old.read(name) if name in old.namelist() else None)
            if body is not None:
                new.writestr(name, body)
        manifest = change.get(MANIFEST)
        new.comment = (
            old.comment if manifest is None else f"sha256:{sha256(manifest)}".encode()
        )
    return out.getvalue()


def manifest_with(content: bytes, **changes: object) -> bytes:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return json.dumps(json.loads(archive.read(MANIFEST)) | changes).encode()


def test_round_trip(tmp_path: Path) -> None:
    bundle = small_bundle()
    path = bundle.write(tmp_path / "out" / "m.pcp")
    again = Bundle.read(path)
    assert again == bundle
    assert again.digest == bundle.digest
    assert again.module() == again.module("cpu") == b"code"
    assert again.ir("main") == "module {}"
    assert list(path.parent.iterdir()) == [path], "a temporary file was left"


def test_a_bundle_is_one_line_where_it_is_printed() -> None:
    bundle = small_bundle()
    size = sum(map(len, bundle.members.values()))
    names = ", ".join(bundle.manifest.functions)
    mode = bundle.manifest.mode
    assert repr(bundle) == f"<Bundle {mode} for cpu: {names}; {size} bytes>"


def test_same_contents_same_bytes() -> None:
    assert small_bundle().to_bytes() == small_bundle().to_bytes()


def test_members_are_stored_and_the_comment_names_the_manifest() -> None:
    with zipfile.ZipFile(io.BytesIO(small_bundle().to_bytes())) as archive:
        assert {e.compress_type for e in archive.infolist()} == {zipfile.ZIP_STORED}
        digest = sha256(archive.read(MANIFEST))
        assert archive.comment == f"sha256:{digest}".encode()


def test_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.pcp"
    path.write_bytes(b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        small_bundle().write(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


CONTENT = small_bundle().to_bytes()
OTHER_VERSION = manifest_with(CONTENT, version=99)

BAD = {
    "empty": (b"", "not a pcp bundle"),
    "text": (b"module {}", "not a pcp bundle"),
    "truncated": (CONTENT[:-40], "truncated or tampered"),
    "half": (CONTENT[: len(CONTENT) // 2], "truncated or damaged"),
    "no manifest": (rezip(CONTENT, {MANIFEST: None}), f"it has no {MANIFEST}"),
    "member changed": (
        rezip(CONTENT, {"modules/cpu.vmfb": b"c0de"}),
        "'modules/cpu.vmfb' is not what the manifest's SHA-256 says",
    ),
    "member grown": (
        rezip(CONTENT, {"modules/cpu.vmfb": b"code!"}),
        "has 5 bytes, the manifest says 4",
    ),
    "member missing": (rezip(CONTENT, {"ir/main.mlir": None}), "is missing"),
    "member added": (rezip(CONTENT, {"ir/x.mlir": b""}), "not listed in the manifest"),
    "path traversal": (rezip(CONTENT, {"../evil": b""}), "no name for a member"),
    "absolute path": (rezip(CONTENT, {"/etc/x": b""}), "no name for a member"),
    "compressed": (rezip(CONTENT, {}, compression=zipfile.ZIP_DEFLATED), "not stored"),
    "manifest changed": (
        rezip(CONTENT, {MANIFEST: manifest_with(CONTENT)}).replace(
            sha256(manifest_with(CONTENT)).encode(), b"0" * 64
        ),
        "the manifest's SHA-256 is not the recorded one",
    ),
    "too new": (rezip(CONTENT, {MANIFEST: OTHER_VERSION}), "bundle version 99"),
    "another format": (
        rezip(CONTENT, {MANIFEST: manifest_with(CONTENT, format="onnx")}),
        "not a pcp bundle, by its manifest",
    ),
    "unknown key": (
        rezip(CONTENT, {MANIFEST: manifest_with(CONTENT, colour="red")}),
        "invalid manifest: colour",
    ),
    "not json": (rezip(CONTENT, {MANIFEST: b"{"}), "damaged manifest"),
    "not an object": (rezip(CONTENT, {MANIFEST: b"[1]"}), "by its manifest"),
    "module without member": (
        rezip(
            CONTENT,
            {
                MANIFEST: manifest_with(
                    CONTENT,
                    modules={
                        "cpu": {
                            "file": "modules/no.vmfb",
                            "target": "cpu",
                            "backend": "llvm-cpu",
                            "driver": "local-task",
                        }
                    },
                )
            },
        ),
        "'modules/no.vmfb'",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_file_is_refused_in_one_line(case: str) -> None:
    content, message = BAD[case]
    with pytest.raises(BundleError) as caught:
        Bundle.from_bytes(content, source="m.pcp")
    assert str(caught.value).startswith("m.pcp: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"no\.pcp: .*No such file"):
        Bundle.read(tmp_path / "no.pcp")


def test_two_members_of_one_name_are_refused() -> None:
    out = io.BytesIO(CONTENT)
    with (
        pytest.warns(UserWarning, match="Duplicate"),
        zipfile.ZipFile(out, "a") as archive,
    ):
        archive.writestr("ir/main.mlir", b"other")
    with pytest.raises(BundleError, match="two members have one name"):
        Bundle.from_bytes(out.getvalue())


@settings(max_examples=300)
@given(st.integers(0, len(CONTENT) - 1), st.integers(1, 255))
def test_a_changed_byte_is_refused_or_harmless(position: int, flip: int) -> None:
    """Never another exception, never other contents."""
    changed = bytearray(CONTENT)
    changed[position] ^= flip
    try:
        read = Bundle.from_bytes(bytes(changed))
    except BundleError:
        return
    assert read == small_bundle()


@settings(max_examples=100)
@given(st.integers(0, len(CONTENT) - 1))
def test_every_truncation_is_refused(length: int) -> None:
    with pytest.raises(BundleError):
        Bundle.from_bytes(CONTENT[:length])


@pytest.mark.parametrize("name", ["../x", "manifest.json", "ir/a/b", "modules/.x", ""])
def test_build_refuses_member_names(name: str) -> None:
    with pytest.raises(BundleError, match="no name for a member"):
        Bundle.build(small_manifest(), {"modules/cpu.vmfb": b"", name: b""})


def test_asking_for_what_is_not_there() -> None:
    bundle = small_bundle()
    with pytest.raises(BundleError, match=r"no module for target 'sm_80' .*holds: cpu"):
        bundle.module("sm_80")
    with pytest.raises(BundleError, match="no IR 'grad'"):
        bundle.ir("grad")
    with pytest.raises(BundleError, match="Did you mean 'main'"):
        bundle.manifest.function("mian")


def test_a_program_over_a_mesh_has_no_module_for_a_target() -> None:
    part = DeviceProgram(module="mesh_0", functions={})
    manifest = Manifest(mode="train", functions={}, programs={"d0": part, "d1": part})
    with pytest.raises(BundleError, match="2 devices; run it with `pcp run`"):
        Bundle.build(manifest, {}).module("cpu")


@pytest.mark.parametrize(
    ("shape", "dtype", "size"),
    [((), "f32", 4), ((2, 3), "bf16", 12), ((5,), "i1", 5), ((0, 4), "f64", 0)],
)
def test_tensor_bytes(shape: tuple[int, ...], dtype: str, size: int) -> None:
    assert tensor_bytes(shape, dtype) == size


def test_unknown_dtype() -> None:
    with pytest.raises(BundleError, match="no dtype 'f33'"):
        tensor_bytes((1,), "f33")
    with pytest.raises(ValueError, match="unknown dtype"):
        TensorSpec(name="x", role="data", shape=(), dtype="float")


def test_donating_what_is_not_given() -> None:
    with pytest.raises(ValueError, match="beyond the inputs"):
        Function(inputs=(W,), results=(), donates=(1,))


def test_positions_by_role() -> None:
    function = small_manifest().function("main")
    assert function.inputs_of("param") == (0,)
    assert function.inputs_of("param", "data") == (0, 1)
    assert function.results_of("loss") == (0,)
