"""A run on this machine: what `pcp train` does."""

from argparse import Namespace

from pcp.tools.commands import train
from pcp.tools.launchers.plan import LaunchPlan
from pcp.tools.support.command import Parser


def flags(parser: Parser) -> None:
    """None of its own."""


def launch(plan: LaunchPlan, flags: Namespace) -> int:
    """Train here; returns the exit code."""
    return train.main(
        [
            *(str(plan.config), "--workers", str(plan.workers)),
            *("--run", str(plan.run), "--resume"),
            *plan.device_arguments(),
        ]
    )
