"""What foreign native code reaches in a worker's process, tried by native code."""

import errno
import json
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.servers.processes import Processes

from pcp.bundle import Bundle, Function, Manifest, Module, TensorSpec
from pcp.runtime.cage import landlock, syscalls
from pcp.runtime.transport import certificates
from pcp.runtime.transport.signatures import Signer
from pcp.signing import BUNDLE

LINUX = pytest.mark.skipif(
    syscalls.here() is None or not landlock.version(), reason="no Landlock here"
)
NATIVE = pytest.mark.skipif(
    platform.machine() != "x86_64" or shutil.which("gcc") is None,
    reason="the object is for x86-64, by gcc",
)
# Each call is one that succeeds, or fails otherwise, without a cage.
SOURCE = """
static long call(long n, long a, long b, long c, long d) {
  long result;
  register long r10 __asm__("r10") = d;
  __asm__ volatile("syscall" : "=a"(result) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10)
                   : "rcx", "r11", "memory");
  return result;
}
void attempts(int *results) {
  results[0] = call(59, (long)"/no/such/program", 0, 0, 0); /* execve */
  results[1] = call(41, 2, 1, 0, 0); /* socket */
  results[2] = call(257, -100, (long)SECRET, 0, 0); /* openat, to read */
  results[3] = call(257, -100, (long)SECRET ".new", 0101, 0600); /* to write */
  results[4] = call(272, 0, 0, 0, 0); /* unshare */
}
"""
MODULE = """
stream.executable private @foreign attributes {hal.executable.objects =
    #hal.executable.objects<{#hal.executable.target<"llvm-cpu", "embedded-elf-x86_64">
      = [#hal.executable.object<{path = "attempts.o"}>]}>} {
  stream.executable.export public @run workgroups() -> (index, index, index) {
    %one = arith.constant 1 : index
    stream.return %one, %one, %one : index, index, index
  }
  builtin.module {
    func.func private @attempts(memref<i32>)
        attributes {hal.import.static, llvm.bareptr = [true]}
    func.func @run(%b0: !stream.binding) {
      %zero = arith.constant 0 : index
      %m = stream.binding.subspan %b0[%zero] : !stream.binding -> memref<5xi32>
      %base, %offset, %sizes, %strides = memref.extract_strided_metadata %m
          : memref<5xi32> -> memref<i32>, index, index, index
      func.call @attempts(%base) : (memref<i32>) -> ()
      return
    }
  }
}
func.func @main() -> tensor<5xi32> {
  %r = flow.dispatch @foreign::@run() : () -> tensor<5xi32>
  return %r : tensor<5xi32>
}
"""


def answer(*words: str | Path) -> Any:
    # numpy's other threads are there before the cage, which would not bind them.
    one = {"OPENBLAS_NUM_THREADS": "1"}
    with Processes() as children:
        process = children.start("helpers.worlds.caged_process", *words, **one)
        assert process.wait(60) == 0, process.text
        return json.loads(process.lines[-1])


def built(folder: Path) -> tuple[Path, str]:
    """A signed bundle whose code tries what it may not, and its signer."""
    compiler = pytest.importorskip("iree.compiler.tools")
    (folder / "attempts.c").write_text(SOURCE)
    secret = f'-DSECRET="{folder / "secret"}"'
    flags = ["-c", "-O1", "-ffreestanding", "-fPIC", "-fno-stack-protector", secret]
    source, made = folder / "attempts.c", folder / "attempts.o"
    subprocess.run(["gcc", *flags, str(source), "-o", str(made)], check=True)
    code = compiler.compile_str(
        MODULE,
        target_backends=["llvm-cpu"],
        extra_args=[
            f"--iree-hal-executable-object-search-path={folder}",
            "--iree-llvmcpu-target-cpu=generic",
        ],
    )
    results = TensorSpec(name="r", role="result", shape=(5,), dtype="i32")
    file = "modules/cpu.vmfb"
    bundle = Bundle.build(
        Manifest(
            mode="forward",
            entry="main",
            functions={"main": Function(inputs=(), results=(results,))},
            modules={
                "cpu": Module(
                    file=file, target="cpu", backend="llvm-cpu", driver="local-task"
                )
            },
        ),
        {file: code},
    )
    certificates.new_identity(folder / "builder.identity")
    signer = Signer(folder / "builder.identity")
    path = folder / "foreign.pcp"
    path.write_bytes(bundle.signed(signer.sign(BUNDLE, bundle.digest)).to_bytes())
    return path, signer.id


@LINUX
@NATIVE
def test_a_signed_module_starts_nothing_connects_nowhere_and_reads_no_secret(
    tmp_path,
) -> None:
    (tmp_path / "secret").write_text("a key")
    bundle, signer = built(tmp_path)
    program, socket, read, write, unshare = answer(
        "module", bundle, signer, "local-sync", "free"
    )
    assert program == -errno.ENOENT
    assert min(socket, read, write) > 2, "without a cage it does what it likes"
    assert unshare == 0
    (tmp_path / "secret.new").unlink()
    barred = [-errno.EPERM] * 2 + [-errno.EACCES] * 2 + [-errno.EPERM]
    for device in ("local-sync", "local-task"):
        assert answer("module", bundle, signer, device, "caged") == barred
    key = tmp_path / "run.key"
    key.write_text("of 32 bytes, as --key-file has it")
    key.chmod(0o600)
    assert answer("keyed", bundle, key, "local-sync") == barred, "with a key alone"
    command = ("run", bundle, "--inputs", "random:1", "--out", tmp_path / "out" / "r")
    (tmp_path / "out").mkdir()
    for how, expected in (("off", None), ("on", barred)):
        with Processes() as children:
            named = {"OPENBLAS_NUM_THREADS": "1"}
            process = children.start("pcp.tools.cli", *command, "--cage", how, **named)
            assert process.wait(60) == 0, process.text
        (results,) = np.load(tmp_path / "out" / "r").values()
        assert expected in (None, results.tolist())
        assert ("cage: no other program" in process.text) == (how == "on")
        assert (tmp_path / "secret.new").exists() == (how == "off")
        (tmp_path / "secret.new").unlink(missing_ok=True)


@LINUX
def test_what_python_reaches_in_a_cage_and_what_a_worker_still_needs(tmp_path) -> None:
    secret, named, new = (tmp_path / name for name in ("secret", "data", "new"))
    secret.write_text("a key")
    named.write_text("data")
    new.mkdir()
    found = answer("attempt", secret, named, new)
    assert "seccomp" in found.pop("held")
    assert found.pop("threads") == 0
    allowed = {name for name, error in found.items() if not error}
    assert allowed == {
        "the file that is named",
        "a new file in the folder",
        "a socket outside",
        "a connection of the transport",
    }
    assert set(found.values()) == {"", "PermissionError"}


@pytest.mark.parametrize(
    ("machine", "header"),
    [("x86_64", "asm/unistd_64.h"), ("aarch64", "asm-generic/unistd.h")],
)
def test_the_numbers_are_the_kernels_own(machine, header) -> None:
    places = [Path("/usr/include"), *Path("/usr/include").glob("*-linux-gnu")]
    file = next((p / header for p in places if (p / header).exists()), None)
    if file is None:
        pytest.skip(f"no {header}: the kernel's headers are not installed")
    lines = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", file.read_text())
    numbers = {name: int(number) for name, number in lines}
    arch = syscalls.ARCHITECTURES[machine]
    ours = {**arch.denied, **arch.sockets, "seccomp": arch.seccomp}
    ours |= {"clone": arch.clone, "clone3": arch.clone3, "ioctl": arch.ioctl}
    newer = {name for name, number in ours.items() if number > 450}
    assert {n: k for n, k in ours.items() if n not in newer} == {
        name: numbers[name] for name in ours if name not in newer
    }
    # What starts or enters a process has no other name there.
    known = {"execve", "execveat", "fork", "vfork", "ptrace", "io_uring_setup"}
    assert {n for n in known if n in numbers} <= ours.keys()
