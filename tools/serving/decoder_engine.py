"""The engine of a compiled decoder, with its weights, and its ranks started."""

import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from pcp.bundle import Bundle
from pcp.errors import ConfigError, UsageError
from pcp.serving import engine, spread
from pcp.serving.drafting import Drafter, DraftModel
from pcp.serving.engine import SlotEngine
from pcp.training.process.child_environment import child_environment

Log = Callable[[str], None]
CHUNKS = (32, 128)


def of_bundle(
    bundle: Bundle | str | Path,
    folder: str | Path,
    *,
    slots: int = 4,
    device: str = "",
    spares: int = 0,
    drafter: Drafter | None = None,
    log: Log = lambda _: None,
) -> SlotEngine:
    """The engine of a bundle with the weights of a folder, its ranks started.

    `folder` may be one that `pcp shard` made for as many ranks. `device` is each
    rank's; left out, one process has all cores, and several have one core each.
    `spares` ranks stand by for those that die.
    """
    if not isinstance(bundle, Bundle):
        bundle = Bundle.read(bundle)
    if bundle.manifest.programs:
        ranks = {"device": device, "spares": spares, "log": log}
        return spread_engine(bundle, folder, slots=slots, drafter=drafter, **ranks)
    if spares:
        raise UsageError("spares are for ranks that die, and one process has none")
    device = device or "local-task"
    return engine.load(bundle, folder, slots=slots, device=device, drafter=drafter)


def draft_model(
    bundle: Bundle, folder: Path, *, slots: int, device: str, vocabulary: int
) -> DraftModel:
    """A drafter of a smaller model's bundle; `ConfigError` if it has other tokens."""
    own = engine.load(bundle, folder, slots=slots, device=device or "local-task")
    if own.vocabulary == vocabulary:
        return DraftModel(own)
    own.close()
    raise ConfigError(
        f"{folder} has {own.vocabulary} tokens and the model that it drafts for "
        f"{vocabulary}: take one with the same tokenizer"
    )


def phases(
    slots: int,
    context: int | Sequence[int] = (),
    *,
    drafted: int = 0,
    drafts: bool = False,
) -> list[str]:
    """Chunks of two lengths, the short ones of several slots too, and decoding.

    Decoding of 1, 2, 4, ... slots, with `drafted` of so many tokens more too. A model
    that `drafts` has chunks of the two tokens by which it comes behind.
    """
    contexts = [context] if isinstance(context, int) else list(context)
    least = min(contexts, default=max(CHUNKS))
    chunks = [n for n in CHUNKS if n <= least] or [least]
    batches = [1 << i for i in range(slots.bit_length()) if 1 << i <= slots]
    several = [n for n in batches if 1 < n <= chunks[-1] // chunks[0]]
    prefill = [*map(str, chunks), *(f"{n}x{chunks[0]}" for n in several)]
    decode = [*map(str, batches)]
    if drafts:
        prefill += [f"{n}x2" for n in batches]
    if drafted:
        decode += [f"{n}x{1 + drafted}" for n in batches]
    return [f"prefill:{','.join(prefill)}", f"decode:{','.join(decode)}"]


def spread_engine(
    bundle: Bundle,
    folder: str | Path,
    *,
    slots: int,
    device: str = "",
    log: Log = lambda _: None,
    **options: Any,
) -> SlotEngine:
    """The engine of a bundle over a mesh, whose ranks are processes of this machine."""
    place = device or "local-sync"
    scratch = tempfile.TemporaryDirectory(prefix="pcp-serve-")
    file = bundle.write(Path(scratch.name) / "model.pcp")
    what = (str(file), slots, place)
    ways = {"spawn": partial(start_rank, *what), "stand_by": partial(StandingBy, *what)}
    rest = {"closed": scratch.cleanup, "log": log, **options}
    return spread.load(bundle, folder, slots=slots, device=place, **ways, **rest)


def start_rank(
    bundle: str, slots: int, device: str, folder: str | Path, rank: int, to: str
) -> subprocess.Popen[bytes]:
    """`pcp serve-rank` for a rank."""
    command = _command(bundle, folder, slots, device, rank, "--connect", to)
    return subprocess.Popen(command, env=child_environment())


class StandingBy(subprocess.Popen[bytes]):
    """`pcp serve-rank --spare`, which waits for a line that says which rank it is."""

    def __init__(
        self, bundle: str, slots: int, device: str, folder: str | Path, rank: int
    ) -> None:
        command = _command(bundle, folder, slots, device, rank, "--spare")
        pipe = subprocess.PIPE
        super().__init__(command, env=child_environment(), stdin=pipe, stdout=pipe)

    def loaded(self, seconds: float) -> bool:
        """See `Spare.loaded`: it says so in a line."""
        assert self.stdout is not None, "a pipe"
        ready, _, _ = select.select([self.stdout], [], [], seconds)
        return bool(ready) and bool(self.stdout.readline())

    def take(self, rank: int, address: str) -> None:
        """See `Spare.take`."""
        assert self.stdin is not None, "a pipe"
        self.stdin.write(f"{rank} {address}\n".encode())
        self.stdin.close()

    def wait(self, timeout: float | None = None) -> int:
        """See `Process.wait`."""
        code = super().wait(timeout)
        for pipe in (self.stdin, self.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()
        return code


def _command(
    bundle: str,
    folder: str | Path,
    slots: int,
    device: str,
    rank: int,
    *place: str,
) -> list[str]:
    command = [sys.executable, "-m", "pcp.tools.cli", "serve-rank", bundle, str(folder)]
    command += ["--rank", str(rank), *place]
    return [*command, "--slots", str(slots), "--device", device]
