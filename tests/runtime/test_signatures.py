"""What users call keeps its signature: `signatures.txt` is the committed record.

Additions are free: a new name, and a new parameter that is passed by name and has a
default. To change the record on purpose, or to put what was added under its guard, run

    python tests/runtime/test_signatures.py

which writes it anew, and read the difference before it is committed.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

import pcp
import pcp.runtime
from pcp.runtime.collectives.pending import Pending
from pcp.runtime.collectives.schedule import simulate
from pcp.runtime.communicator.communicator import ElasticCommunicator
from pcp.runtime.communicator.link_probe import Effort
from pcp.runtime.communicator.param_sync import SyncReport
from pcp.runtime.communicator.prometheus_exporter import Exporter
from pcp.runtime.compression.codecs import codec
from pcp.runtime.compression.power_sgd import PowerSGD
from pcp.runtime.group.coordinator import Coordinator
from pcp.runtime.program.devices import (
    Device,
    DeviceArray,
    available_drivers,
    open_device,
)
from pcp.runtime.program.executor import BoundFunction
from pcp.runtime.program.mesh_groups import MeshGroups
from pcp.runtime.topology.topology import Topology
from pcp.runtime.transport.fault_injection import FaultPlan, Shape
from pcp.runtime.transport.tls import Tls

ALIASES = {"Seconds": "float | timedelta | None", "Streams": "int | Literal[auto]"}
_STARS = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}
RECORD = Path(__file__).with_name("signatures.txt")
SPECIAL = ("__init__", "__call__", "__getitem__", "__enter__")
MADE_BY_OTHERS = ("Communicator", "Coordinator", "Endpoint", "Rendezvous")
"""Users do not construct these: they are made by `connect`, `join` and `listen`."""
SINK = ("place", "deliver", "lost")
"""What a connection calls on whoever owns it."""
DOCUMENTED = (
    # What the documents, examples and errors tell users to import.
    BoundFunction,
    Coordinator,
    Device,
    DeviceArray,
    Effort,
    ElasticCommunicator,
    Exporter,
    FaultPlan,
    MeshGroups,
    Pending,
    PowerSGD,
    Shape,
    SyncReport,
    Tls,
    Topology,
    available_drivers,
    codec,
    open_device,
    simulate,
)
NAMED: dict[str, Any] = {
    **{name: getattr(pcp, name) for name in pcp.__all__},
    **{name: getattr(pcp.runtime, name) for name in pcp.runtime.__all__},
    **{thing.__name__: thing for thing in DOCUMENTED},
}


def signatures(things: Mapping[str, Any] = NAMED) -> dict[str, str]:
    """Each public name, and how it is called."""
    found: dict[str, str] = {}
    for name, thing in things.items():
        lines = _of_class(thing) if inspect.isclass(thing) else [_line(thing, name)]
        found |= dict(lines)
    return found


def broken(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """What earlier calls would notice; what was only added is not among it."""
    return [
        f"{name}: {text!r} became {now.get(name)!r}"
        for name, text in before.items()
        if name not in now or not _extends(_parts(text), _parts(now[name]))
    ]


def _of_class(cls: type) -> Iterator[tuple[str, str]]:
    made = cls.__name__.endswith(MADE_BY_OTHERS)
    for name in dir(cls):
        if name in SINK or (name.startswith("_") and name not in SPECIAL):
            continue
        if not _is_its_own(cls, name) or (made and name == "__init__"):
            continue
        member = inspect.getattr_static(cls, name)
        whole = f"{cls.__name__}.{name}"
        kept = isinstance(member, cached_property)
        function = isinstance(member, classmethod | staticmethod) or (
            inspect.isroutine(member) and not kept
        )
        if function:
            yield _line(getattr(cls, name), whole)
        else:
            yield whole, "a value"


def _is_its_own(cls: type, name: str) -> bool:
    """Whether a public class of ours that it derives from does not say it already."""
    owner = next(base for base in cls.__mro__ if name in vars(base))
    above = [base for base in cls.__mro__[1:] if base in NAMED.values()]
    told = any(owner in base.__mro__ for base in above)
    return not told and (owner is cls or owner.__module__.startswith("pcp"))


def _line(function: Callable[..., Any], name: str) -> tuple[str, str]:
    signature = inspect.signature(function)
    result = _annotation(signature.return_annotation)
    shown = list(_shown(signature.parameters.values()))
    text = "; ".join([*shown, f"-> {result}"])
    return name, re.sub(r"\bSelf\b", name.split(".")[0], text)


def _shown(parameters: Iterable[inspect.Parameter]) -> Iterator[str]:
    """Name, type and default of each; as in Python, a star before what is named."""
    starred = False
    for parameter in parameters:
        if parameter.name.startswith("_"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            yield "*"
        starred |= parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        text = _STARS.get(parameter.kind, "") + parameter.name
        if parameter.annotation is not parameter.empty:
            text += f": {_annotation(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            text += f" = {parameter.default!r}"
        yield text


def _annotation(annotation: Any) -> str:
    """A type without the modules that its parts live in."""
    if annotation is inspect.Signature.empty:
        return "?"
    text = inspect.formatannotation(annotation)
    if "_DTypeDict" in text:  # numpy's own alias, spelt out otherwise in each version
        return "DTypeLike"
    text = re.sub(r"(\w+\.)+(?=\w)", "", text.replace('"', "").replace("'", ""))
    array = r"ndarray\[(tuple\[Any, \.\.\.\]|Any), dtype\[[^\]]*\]\]"
    text = re.sub(array, "NDArray", text)
    for alias, spelt in ALIASES.items():  # which may be spelt out, or not
        text = re.sub(rf"\b{alias}\b", spelt, text)
    return re.sub(r"Union\[int, (Literal\[\w+\])\]", r"int | \1", text)


def _parts(text: str) -> tuple[list[str], list[str], str]:
    """What is passed in its place, what by name, and the result."""
    *parameters, result = text.split("; ")
    cut = [i for i, shown in enumerate(parameters) if shown.startswith("*")]
    at = cut[0] if cut else len(parameters)
    return parameters[:at], parameters[at:], result


def _extends(
    before: tuple[list[str], list[str], str], now: tuple[list[str], list[str], str]
) -> bool:
    """Whether every call of before is one now: only optional names were added."""
    added = set(now[1]) - set(before[1]) - {"*"}
    optional = all(" = " in parameter for parameter in added)
    lost = set(before[1]) - set(now[1])
    return before[0] == now[0] and before[2] == now[2] and optional and not lost


def _read(text: str) -> dict[str, str]:
    pairs = (line.split(" | ", 1) for line in text.splitlines())
    return {name: rest for name, rest in pairs}


def _written(found: dict[str, str]) -> str:
    return "".join(f"{name} | {text}\n" for name, text in sorted(found.items()))


def test_what_users_call_is_as_it_was():
    before = _read(RECORD.read_text())
    assert len(before) > 150, "the record must hold the whole API"
    assert broken(before, signatures()) == []


def test_the_record_is_sorted_and_holds_the_names_of_the_documents():
    names = list(_read(RECORD.read_text()))
    assert names == sorted(names)
    for name in (
        "Communicator.all_reduce",
        "Program.load",
        "ElasticCommunicator.retry",
    ):
        assert name in names


class _Before:
    def call(self, array: int, op: str = "sum", *, tag: str = "") -> int: ...
    def gone(self) -> None: ...


class _Added:
    def call(
        self, array: int, op: str = "sum", *, root: int = 0, tag: str = ""
    ) -> int: ...
    def gone(self) -> None: ...
    def more(self) -> None: ...


class _Changed:
    def call(self, array: int, op: str = "mean", *, tag: str = "") -> int: ...


class _Needed:
    def call(self, array: int, op: str = "sum", *, root: int, tag: str = "") -> int: ...
    def gone(self) -> None: ...


@pytest.mark.parametrize(
    ("after", "names"),
    [(_Added, []), (_Changed, ["call", "gone"]), (_Needed, ["call"])],
)
def test_a_changed_default_a_lost_name_and_a_new_duty_are_noticed(after, names):
    before, now = (
        {name.split(".")[1]: text for name, text in signatures({"": cls}).items()}
        for cls in (_Before, after)
    )
    assert [line.split(":")[0] for line in broken(before, now)] == names


def test_what_is_passed_by_name_or_in_place_does_not_change_silently():
    before = {"f": "a: int; b: int = 1; *; c: int = 2; -> int"}
    assert not broken(
        before, {"f": "a: int; b: int = 1; *; d: int = 3; c: int = 2; -> int"}
    )
    assert broken(before, {"f": "b: int = 1; a: int; *; c: int = 2; -> int"})
    assert broken(before, {"f": "a: int; *; b: int = 1; c: int = 2; -> int"})
    assert broken(before, {"f": "a: int; b: int = 1; **options: Any; -> int"})


if __name__ == "__main__":
    RECORD.write_text(_written(signatures()))
