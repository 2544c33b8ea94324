"""What is asked for that only a program over a mesh has."""

from pcp.compiler.options import CompileOptions
from pcp.errors import ConfigError


def check_planned(options: CompileOptions) -> None:
    """What a plan decides is not to be asked for as well: `ConfigError`."""
    for flag, asked in (
        ("--sharding", options.sharding not in (None, "auto")),
        ("--zero", bool(options.zero)),
        ("--split", bool(options.split)),
        ("--microbatches", options.microbatches is not None),
        ("--schedule", options.schedule is not None),
    ):
        if asked:
            raise ConfigError(
                f"{options.source}: {flag} goes with --mesh; without a mesh the plan "
                "for the cluster decides this"
            )


def check_whole(options: CompileOptions) -> None:
    """A program for one device has nothing to spread: `ConfigError`."""
    for flag, asked in (
        ("--sharding", options.sharding not in (None, "auto", "none")),
        ("--zero", bool(options.zero)),
        ("--microbatches", options.microbatches is not None),
        ("--schedule", options.schedule is not None),
        ("--tied", options.tied),
        ("--wire", options.wire is not None),
    ):
        if asked:
            raise ConfigError(
                f"{options.source}: {flag} is for a program over several devices; say "
                "which, --mesh dp=2 or --cluster FILE, or leave it out"
            )


def check_unstaged(options: CompileOptions) -> None:
    """Over a mesh without stages there is nothing to put in an order: `ConfigError`."""
    for flag, asked in (
        ("--microbatches", options.microbatches is not None),
        ("--schedule", options.schedule is not None),
        ("--tied", options.tied),
    ):
        if asked:
            raise ConfigError(
                f"{options.source}: {flag} is for pipeline stages, and the mesh has "
                "none; say how many, --mesh pp=2, or leave it out"
            )
