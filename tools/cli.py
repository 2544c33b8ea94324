"""`pcp`: one command with subcommands, and the flag forms of its predecessor.

A subcommand is one line in `COMMANDS`; its module is imported when it is asked
for, so that `pcp worker` never loads what only the compiler needs. The older
spelling works too, by translation:

    pcp --shepherd --config X.json      is   pcp shepherd --config X.json
    pcp --worker --connect H:P          is   pcp worker --connect H:P
    pcp --node-manager --scale 8        is   pcp node --scale 8
    pcp --supervise -- --worker ...     is   pcp supervise -- worker ...
"""

import gc
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from pcp.errors import UsageError, nearest
from pcp.tools.support.command import run
from pcp.version import VERSION

COMMANDS: dict[str, tuple[str, str]] = {
    "guide": ("pcp.tools.guide.guide", "learn how it works: chapters, exercises"),
    "init": (
        "pcp.tools.start.init",
        "a folder with an experiment to begin with",
    ),
    "train": (
        "pcp.tools.commands.train",
        "train on this machine: shepherd, workers, summary",
    ),
    "launch": ("pcp.tools.launchers.launch", "a run on Ray, Slurm, Kubernetes or here"),
    "simulate": (
        "pcp.tools.commands.simulate",
        "a run on paper: more workers, worse networks",
    ),
    "shepherd": ("pcp.tools.commands.shepherd", "coordinate a training run"),
    "worker": ("pcp.tools.commands.worker", "train for a shepherd"),
    "node": ("pcp.tools.commands.node", "run supervised workers, one per device"),
    "supervise": ("pcp.tools.commands.supervise", "restart a command when it dies"),
    "coordinator": ("pcp.tools.commands.coordinator", "where an elastic group meets"),
    "run": (
        "pcp.tools.commands.run",
        "run one function of a bundle, spread over its mesh",
    ),
    "serve-rank": (
        "pcp.tools.serving.serve_rank",
        "one rank of a model that is served over several",
    ),
    "shard": (
        "pcp.tools.serving.shard",
        "a model's weights cut for the ranks that will serve it",
    ),
    "plan": (
        "pcp.tools.commands.planner",
        "which mesh and layouts suit a cluster, and why",
    ),
    "tune": (
        "pcp.tools.tune.tune",
        "how a model's products are fastest on this processor",
    ),
    "probe": (
        "pcp.tools.commands.probe",
        "measure this machine and write a cluster file",
    ),
    "bench": (
        "pcp.tools.commands.bench",
        "how fast collectives, the network or a server are",
    ),
    "export": ("pcp.tools.commands.export", "a PyTorch or JAX model to model.mlir"),
    "chat": ("pcp.tools.serving.chat", "talk to a served model"),
    "serve": ("pcp.tools.serving.serve", "a model behind OpenAI's API"),
    "runs": ("pcp.tools.runs.listing", "the runs of a folder, live and finished"),
    "show": ("pcp.tools.runs.show", "one run from its folder"),
    "compare": ("pcp.tools.runs.compare", "runs side by side, and what differs"),
    "ui": ("pcp.tools.runs.ui", "the runs of a folder in a browser"),
    "logs": ("pcp.tools.runs.logs", "what a run's shepherd said"),
    "attach": ("pcp.tools.runs.attach", "watch a run until it ends"),
    "clean": ("pcp.tools.runs.clean", "remove complete runs that are old"),
    "cache": ("pcp.tools.commands.cache", "the compiled modules that are kept"),
    "completion": ("pcp.tools.start.completion", "complete words in bash, zsh, fish"),
    "status": ("pcp.tools.commands.status", "what a run is doing"),
    "cluster": (
        "pcp.tools.commands.cluster",
        "the shepherds and workers that are near",
    ),
    "control": (
        "pcp.tools.commands.control",
        "pause, cancel, drain a worker, change H",
    ),
    "keys": ("pcp.tools.commands.keys", "identities, and who may be what in a run"),
    "verify": ("pcp.tools.commands.verify", "who signed a bundle, checkpoint or run"),
    "ledger": (
        "pcp.tools.commands.ledger",
        "check a run's samples; make its rounds again",
    ),
    "inspect": ("pcp.tools.commands.inspect", "what a bundle holds"),
    "profile": (
        "pcp.tools.commands.profile",
        "where the time of a compiled function goes",
    ),
    "doctor": (
        "pcp.tools.commands.doctor",
        "check the installation and say what to do",
    ),
    "schema": ("pcp.tools.commands.schema", "the JSON Schema of experiment files"),
}
"""Name -> (module whose `main(argv)` runs it, one line of help)."""

MODE_FLAGS = {
    "--shepherd": "shepherd",
    "--worker": "worker",
    "--node-manager": "node",
    "--supervise": "supervise",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run `pcp`; returns the exit code."""
    return run("pcp", _main, argv)


def _main(argv: Sequence[str]) -> int:
    arguments = translate(argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"pcp {VERSION}")
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        raise UsageError(unknown(name))
    return _imported(COMMANDS[name][0]).main(rest) or 0


def _imported(name: str) -> ModuleType:
    """A module with what it imports; nothing of that is garbage, so none is sought."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        return import_module(name)
    finally:
        if enabled:
            gc.enable()


def usage() -> str:
    """The text of `pcp --help`."""
    lines = [f"  {name:<12}{help_}" for name, (_, help_) in sorted(COMMANDS.items())]
    return "\n".join(
        [
            "usage: pcp COMMAND [flags]      (pcp COMMAND --help for one command)",
            "",
            *lines,
            "",
            "example:",
            "  pcp init demo && pcp train demo/demo.json --workers 2",
        ]
    )


def unknown(name: str) -> str:
    """What to say about a command or flag that does not exist."""
    known = [*COMMANDS, *MODE_FLAGS, "--help", "--version"]
    what = "flag" if name.startswith("-") else "command"
    return f"no {what} {name!r}.{nearest(name, known)} (see pcp --help)"


def translate(argv: Sequence[str]) -> list[str]:
    """`argv` with a mode flag turned into the subcommand it stands for.

    `--supervise` takes everything after it as the child's command line, and the
    flags before it are the supervisor's own. Without a mode flag `--connect`
    means a worker and `--config` a shepherd, as they always did.
    """
    arguments = list(argv)
    if not arguments or not arguments[0].startswith("--"):
        return arguments
    if "--supervise" in arguments:
        at = arguments.index("--supervise")
        child = arguments[at + 1 :]
        child = child[1:] if child[:1] == ["--"] else child
        return ["supervise", *arguments[:at], "--", *translate(child)]
    for flag in arguments:
        if flag in MODE_FLAGS:
            arguments.remove(flag)
            return [MODE_FLAGS[flag], *arguments]
    return [*_implied_mode(arguments), *arguments]


def _implied_mode(arguments: Sequence[str]) -> list[str]:
    names = {argument.partition("=")[0] for argument in arguments}
    if "--connect" in names:
        return ["worker"]
    return ["shepherd"] if "--config" in names else []


if __name__ == "__main__":
    raise SystemExit(main())
