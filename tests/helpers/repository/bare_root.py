"""A root of its own for the instructions of a Dockerfile, where no daemon runs.

It has this machine's programs and its Python, to be read alone, and nothing else: no
environment, no home, no package. Roots are for root: `can_make_roots`.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

_READ = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/dev")
_PASSED = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CERT", "PIP_CONFIG_FILE")
_FILES = ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/etc/ssl", "/etc/pki")
_TIMEOUT_S = 900


def can_make_roots() -> bool:
    """Whether this process may."""
    return os.geteuid() == 0 and bool(shutil.which("unshare"))


class BareRoot:
    """A folder that commands see as `/`; `source` is what `COPY .` copies."""

    def __init__(self, folder: Path, source: Path) -> None:
        self.folder, self._source = folder, source
        self._python = Path(sys.base_prefix)
        self._user = 0
        self._within = "/"
        self._environment = {"PATH": f"{self._python}/bin:/usr/bin:/bin:/usr/sbin"}

    def __enter__(self) -> Self:
        for name in ("etc", "tmp", "proc", "home"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\n")
        (self.folder / "etc/group").write_text("root:x:0:\n")
        (self.folder / "tmp").chmod(0o1777)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Mounts end with the command that had them."""

    def build(self, instructions: Sequence[tuple[str, str]]) -> str:
        """Carry out a Dockerfile; what its command says in the end."""
        entry: list[str] = []
        for word, rest in instructions:
            if word == "RUN":
                self.run(["sh", "-c", rest])
            elif word == "COPY" and rest == ". /src":
                shutil.copytree(self._source, self.folder / "src", symlinks=True)
            elif word == "COPY":
                assert rest == "--from=build /opt/pcp /opt/pcp", rest
                shutil.rmtree(self.folder / "src")  # the second stage has it not
            elif word == "USER":
                self._user = int(rest)
            elif word == "WORKDIR":
                self._within = rest
            elif word == "ENV":
                name, _, value = rest.partition("=")
                path = self._environment["PATH"]
                self._environment[name] = value.replace("$PATH", path)
            elif word in ("ENTRYPOINT", "CMD"):
                entry += json.loads(rest)
            else:
                assert word == "FROM", word
        return self.run(entry)

    def run(self, words: Sequence[str]) -> str:
        """A command in the root, as its user; what it prints."""
        passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
        done = subprocess.run(
            ["unshare", "--mount", "--fork", "sh", "-euc", self._script(), "x", *words],
            env=self._environment | passed | {"HOME": "/tmp"},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def _script(self) -> str:
        """Mounts what may be read, and becomes the user in the root."""
        root = self.folder
        lines = ["mount --make-rprivate /"]
        given = [p for p in (*_READ, *_FILES, str(self._python)) if Path(p).exists()]
        for path in given:
            if Path(path).is_dir():
                lines.append(f"mkdir -p {root}{path}")
            else:
                lines.append(f"mkdir -p {root}{Path(path).parent}; touch {root}{path}")
            lines.append(f"mount --rbind {path} {root}{path}")
            if path != "/dev":
                lines.append(f"mount -o remount,bind,ro {root}{path}")
        lines.append(f"mount -t proc proc {root}/proc")
        become = f"setpriv --reuid {self._user} --regid {self._user} --clear-groups"
        inside = f'cd {self._within}; exec "$@"'
        lines.append(f"exec chroot {root} {become} sh -euc '{inside}' x \"$@\"")
        return "\n".join(lines)
