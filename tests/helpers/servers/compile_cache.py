"""Modules that tests compile, by content, kept from run to run.

The folder is `.pytest_cache/pcp`, at most 2 GiB; delete it to compile all anew. It is
`$PCP_CACHE` while tests run, so that commands and workers that tests start use it too.
A sub-folder stands for a processor, for which `cpu:host` compiles, and for those of our
sources that decide what a compilation refuses; those used last are kept, for checkouts
that share the folder, and for branches. Refusals are not kept.
What JAX compiles, the oracle of most derivatives, is kept there by JAX itself.
"""

import hashlib
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from pcp.compiler import fences, iree
from pcp.compiler.cache import Cache, key
from pcp.tools.support.cache_folder import VARIABLE

MAX_BYTES = 2 << 30
VERSIONS = 3
FOLDER = "PCP_TESTS_CACHE"  # also where a test has a $PCP_CACHE of its own
_JAX = {  # all that it compiles, however small
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    # GPUs' alone. Its folder would be part of each key: a checkout elsewhere, to which
    # the caches are copied, found nothing.
    "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
}
# An oracle's program runs once, on a few numbers: plain code of it is made sooner.
# (Without its fusion emitters, too, XLA flushes what is subnormal, and reads u8 indices
# of scatters wrong.)
_XLA = "--xla_backend_optimization_level=0"
# The processors have other tests to run; the same bytes come out.
_ONE_THREAD = "--mlir-disable-threading"
# A fifth of its time IREE looks at its own work between passes. Tests that are not slow
# do without, and what fails so is compiled again with that, for its message.
_UNVERIFIED = "--verify=false"
VERIFIES = "PCP_TESTS_VERIFY"  # set where the slow tests run, which want it
_IN = r'(?:[^()"]|"[^"]*")'
_LOCATIONS = re.compile(
    rf" loc\((?:{_IN}|\((?:{_IN}|\({_IN}*\))*\))*\)|^#loc\d* = .*\n", re.MULTILINE
)

#: The compiler itself, which tests about compiling call.
uncached = iree.compile_text


def compile_text(
    text: str,
    flags: Sequence[str],
    *,
    timeout: float,
    running: iree.Running | None = None,
) -> bytes:
    """As `pcp.compiler.iree.compile_text`; the same program is compiled once.

    Programs that differ in locations alone are the same, as for pcp's own cache.
    """
    cache = Cache(Path(os.environ[FOLDER]), MAX_BYTES)
    plain = _LOCATIONS.sub("", text)
    own = () if VERIFIES in os.environ else (_UNVERIFIED,)
    name = key(plain, (*iree.common_flags(plain), *flags), iree.version())
    if (found := cache.get(name)) is None:
        flags = (*flags, _ONE_THREAD)
        options = {"timeout": timeout, "running": running}
        try:
            found = uncached(text, (*flags, *own), **options)
        except iree.LateImport:
            raise
        except iree.Failure:
            if not own:
                raise
            found = uncached(text, flags, **options)
        cache.put(name, found)
    return found


def install(folder: Path, *, verify: bool) -> None:
    """Compile through the cache in `folder`, in this process and those it starts.

    IREE verifies its own work if `verify`, and what was not verified is elsewhere.
    Python keeps its bytecode beside the sources, also where it was told to keep none.
    """
    place = folder / _version(verify)
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ |= {VARIABLE: str(place), FOLDER: str(place)}
    if verify:
        os.environ[VERIFIES] = "1"
    os.environ |= {"JAX_COMPILATION_CACHE_DIR": str(place / "jax"), **_JAX}
    os.environ["XLA_FLAGS"] = f"{_XLA} {os.environ.get('XLA_FLAGS', '')}".strip()
    # Each process would start a thread of numpy's for each processor: the sixteenth of
    # a second that they spin is a tenth of what a command takes.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    # Each command would look for plugins of pydantic in every installed package.
    os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"
    iree.compile_text = compile_text


def tidy(folder: Path, *, verify: bool = False) -> None:
    """Delete what processors and versions of our sources left that are long gone."""
    own = folder / _version(verify)
    own.mkdir(parents=True, exist_ok=True)
    own.touch()  # a folder's age is that of its last run
    for other in sorted(folder.glob("*"), key=lambda p: p.stat().st_mtime)[:-VERSIONS]:
        shutil.rmtree(other, ignore_errors=True)
    of_jax = own / "jax"
    if sum(entry.stat().st_size for entry in of_jax.glob("*")) > MAX_BYTES // 4:
        shutil.rmtree(of_jax, ignore_errors=True)


def _version(verify: bool) -> str:
    digest = hashlib.sha256(_processor().encode() + bytes([verify]))
    for source in (iree.__file__, fences.__file__):
        digest.update(Path(str(source)).read_bytes())
    return digest.hexdigest()[:16]


def _processor() -> str:
    """Name and features of the first processor, as Linux has them."""
    try:
        first, _, _ = Path("/proc/cpuinfo").read_text().partition("\n\n")
    except FileNotFoundError:
        return ""
    lines = first.splitlines()
    return "\n".join(x for x in lines if x.startswith(("model name", "flags", "Feat")))
