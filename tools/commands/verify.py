"""`pcp verify`: whether a file is whole, who signed it, and whether that is trusted."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from pcp import signing
from pcp.bundle import Bundle
from pcp.errors import BundleError, ConfigError, StateMismatch
from pcp.runtime.transport.link import Untrusted
from pcp.runtime.transport.signatures import Trust, signer_of
from pcp.tools.support.command import Parser, run
from pcp.tools.support.lines import say
from pcp.tools.support.protection import add_trust_flag, trusted_ids
from pcp.training.storage import checkpoint as checkpoints
from pcp.training.storage import ledger

PROG = "pcp verify"


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, _main, argv)


def parser() -> Parser:
    """Its flags."""
    parser = Parser(
        prog=PROG,
        description="Check that a bundle, a checkpoint, or a run's ledger and its "
        "checkpoints are whole and signed, and say by whom; with --trust, that it is "
        "one of these.",
        example="pcp verify model.pcp --trust 4zq6c2v5mzt3n4x7q2k5w3e6y7u2i3o4",
    )
    parser.add_argument("file", metavar="FILE", help="a bundle, or the folder of one")
    add_trust_flag(parser, "an identity that must have signed it; again for more")
    return parser


def _main(argv: Sequence[str]) -> None:
    flags = parser().parse_args(argv)
    path = Path(flags.file)
    if not path.exists():
        raise ConfigError(f"{path}: there is no such file")
    if path.is_dir() and (path / checkpoints.SUMS).exists():
        _checkpoint(path, flags)
    elif path.is_dir() or path.name == ledger.FILE_NAME:
        _run(path if path.is_dir() else path.parent, flags)
    else:
        bundle = Bundle.read(path)
        _told(signing.BUNDLE, bundle.digest, bundle.signatures, path, flags)


def _run(folder: Path, flags: Namespace) -> None:
    """The ledger, whose last line stands for all before it, and what was saved."""
    path = folder / ledger.FILE_NAME
    signers = ledger.signers(path)
    if not signers:
        raise BundleError(f"{path}: nobody has signed its lines")
    _named(str(path), signers, signers[-1:], trusted_ids(flags))
    for saved in checkpoints.folders(folder):
        _checkpoint(saved, flags)


def _checkpoint(folder: Path, flags: Namespace) -> None:
    checkpoints.load(folder)
    digest, signatures = checkpoints.signatures(folder)
    _told(signing.CHECKPOINT, digest, signatures, folder, flags)


def _told(
    kind: str,
    digest: str,
    signatures: Sequence[signing.Signature],
    path: Path,
    flags: Namespace,
) -> None:
    """Say who signed a file; an error where nobody did, or nobody trusted."""
    if not signatures:
        raise BundleError(f"{path}: whole, but nobody has signed it")
    try:
        signers = [signer_of(kind, digest, signature) for signature in signatures]
    except Untrusted as error:
        raise BundleError(f"{path}: {error}") from error
    Trust(trusted_ids(flags)).check(kind, digest, signatures, str(path))
    _named(str(path), signers, signers, trusted_ids(flags))


def _named(
    path: str, signers: Sequence[str], deciding: Sequence[str], trusted: frozenset[str]
) -> None:
    if trusted and not trusted.intersection(deciding):
        raise StateMismatch(f"{path}: signed by {', '.join(signers)}: none is trusted")
    say(f"{path}: whole, signed by {', '.join(signers)}")


if __name__ == "__main__":
    raise SystemExit(main())
