"""Pages of reference from the code: commands, the Python API, experiments, metrics.

`python -m pcp.tools.pages.docs` writes them to docs/reference.
"""

import argparse
import inspect
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, get_args

import pcp
from pcp.runtime.collectives.metrics import described as of_members
from pcp.tools.cli import COMMANDS
from pcp.tools.pages.markdown import NOTICE, table
from pcp.tools.pages.monitoring import ALERTS, DASHBOARD, RULES
from pcp.training.config.data_options import DataOptions
from pcp.training.config.experiment import Experiment
from pcp.training.observe.prometheus import described as of_runs

SCRIPTS = {"pcp-opt": "pcp.tools.opt", "pcp-compile": "pcp.tools.compile"}
"""Console scripts beside `pcp`, and the modules with their parsers."""


# --- the commands ---


def commands_page() -> Iterator[str]:
    """Every command with its words and flags, from its parser."""
    yield "# Commands"
    yield NOTICE
    yield "`pcp COMMAND --help` prints the same. Every command has `--debug` as well."
    rows = [
        (f"[pcp {name}](#pcp-{name})", help_)
        for name, (_, help_) in sorted(COMMANDS.items())
    ]
    yield table(("command", "what it does"), rows)
    for name, (module, _) in sorted(COMMANDS.items()):
        yield from _command(f"pcp {name}", import_module(module).parser())
    for name, module in SCRIPTS.items():
        yield from _command(name, import_module(module).parser())


def _command(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"## {name}"
    yield escaped(" ".join((parser.description or "").split()))
    _, _, example = (parser.epilog or "").partition("\n")
    if example:
        yield "\n".join(f"    {line.strip()}" for line in example.splitlines())
    rows = [_flag(parser, one) for one in parser._actions if _is_shown(one)]
    if rows:
        yield table(("word", "what"), rows)


def _is_shown(action: argparse.Action) -> bool:
    hidden = action.help == argparse.SUPPRESS
    return not hidden and action.dest not in ("help", "debug", "version")


def _flag(parser: argparse.ArgumentParser, action: argparse.Action) -> tuple[str, str]:
    """A flag with its value, and its help; the choices stand behind."""
    names = ", ".join(action.option_strings)
    value = "" if action.nargs == 0 else _value(action)
    word = f"`{' '.join(filter(None, (names, value)))}`"
    said = parser._get_formatter()._expand_help(action) if action.help else ""
    choices = ", ".join(f"`{one}`" for one in action.choices or ())
    what = "; ".join(filter(None, (escaped(said), choices)))
    return word.replace("|", "\\|"), what


def _value(action: argparse.Action) -> str:
    metavar = action.metavar or (action.dest.upper() if action.option_strings else "")
    if isinstance(metavar, tuple):
        return " ".join(metavar)
    return str(metavar or action.dest)


# --- the Python API ---


def api_page() -> Iterator[str]:
    """Every public name of `pcp`, with its signature and docstring."""
    yield "# Python API"
    yield NOTICE
    yield "`import pcp` gives these names; each is loaded when it is first used."
    for name in pcp.__all__:
        thing = getattr(pcp, name)
        yield f"## pcp.{name}"
        yield f"    {_signature(name, thing)}"
        yield _documentation(thing)
        if inspect.isclass(thing):
            rows = list(_methods(thing))
            if rows:
                yield table(("method", "what"), rows)


def _signature(name: str, thing: Any) -> str:
    """Parameters with their defaults; types stand in the code."""
    try:
        parameters = inspect.signature(thing).parameters.values()
    except ValueError:
        return f"pcp.{name}"
    shown = [one.replace(annotation=inspect.Parameter.empty) for one in parameters]
    text = str(inspect.Signature(shown))
    return f"pcp.{name}{re.sub(r' at 0x[0-9a-f]+', '', text)}"


def _documentation(thing: Any) -> str:
    """A docstring; its indented parts stay code."""
    return escaped(inspect.getdoc(thing) or "")


def _methods(cls: type) -> Iterator[tuple[str, str]]:
    for name, member in sorted(vars(cls).items()):
        call = getattr(member, "__func__", member)
        text = inspect.getdoc(call) or ""
        if not name.startswith("_") and text and callable(call):
            first = " ".join(text.partition("\n\n")[0].split())
            yield f"`{name}`", escaped(first).replace("|", "\\|")


# --- experiments ---


def experiment_page() -> Iterator[str]:
    """Every key of an experiment file."""
    yield "# Experiment keys"
    yield NOTICE
    yield (
        "An experiment is one JSON object. `pcp schema` prints its JSON Schema, and "
        "`--set KEY=VALUE` of `pcp train` and `pcp shepherd` sets a key for one run. "
        "An unknown key is an error that names the nearest one."
    )
    yield table(("key", "type", "default", "what"), _keys(Experiment.model_fields))
    yield "## The key `data`"
    yield "Its own keys; `--set data.KEY=VALUE` sets one. [Data](../data.md) says more."
    yield table(("key", "type", "default", "what"), _keys(DataOptions.model_fields))


def _keys(fields: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return [
        (f"`{name}`", _type(field.annotation), _default(field), _text(field))
        for name, field in fields.items()
    ]


def _text(field: Any) -> str:
    return escaped(field.description or "").replace("|", "\\|")


def _default(field: Any) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    empty = isinstance(value, list | tuple | dict) and not value
    return "empty" if empty else f"`{value}`"


def _type(hint: Any) -> str:
    """As JSON has it."""
    simple = {str: "text", int: "integer", float: "number", bool: "true or false"}
    if hint in simple:
        return simple[hint]
    if inspect.isclass(hint):
        return "object"
    kinds = [one for one in get_args(hint) if one is not type(None)]
    if kinds and all(isinstance(one, str) for one in kinds):
        return " or ".join(f"`{one}`" for one in kinds)
    outer = str(getattr(hint, "__origin__", ""))
    if "list" in outer or "tuple" in outer:
        return "list"
    if "dict" in outer or "apping" in outer:
        return "object"
    return " or ".join(dict.fromkeys(_type(one) for one in kinds[:1])) or "object"


# --- metrics ---


def metrics_page() -> Iterator[str]:
    """Every metric that Prometheus finds, of runs and of members."""
    yield "# Metrics"
    yield NOTICE
    yield "## Of a run"
    yield (
        "At `/metrics` of the shepherd's web page, with `pip install "
        "'pcp-mlir[metrics]'`. Figures by worker have the label `worker`."
    )
    yield table(("metric", "what"), [(f"`{n}`", w) for n, w in of_runs().items()])
    yield (
        "Histograms have `_bucket`, `_sum` and `_count` behind their name. "
        f"[`{DASHBOARD}`](../{DASHBOARD}) is a dashboard of these for Grafana "
        "(Dashboards, New, Import), "
        f"[`{ALERTS}`](../{ALERTS}) has rules for Prometheus (`rule_files:`)."
    )
    yield table(("alert", "what it means"), [(n, what) for n, _, _, what in RULES])
    yield "## Of a member's collectives"
    yield "From `Communicator.metrics()`, and at the port of `--metrics-port`."
    yield table(("metric", "what"), [(f"`{n}`", w) for n, w in of_members().items()])


def escaped(text: str) -> str:
    """Text in which `<` and `*` are no markup, outside of code spans and blocks."""
    lines = []
    for line in text.splitlines():
        parts = line.split("`")
        for i in range(0, len(parts), 2):
            if not line.startswith("    "):
                parts[i] = parts[i].replace("<", "&lt;").replace("*", "\\*")
        lines.append("`".join(parts))
    return "\n".join(lines)
