"""What a pass is, how its options are written, and how a pipeline runs.

A pass is a frozen dataclass. Its class attribute `name` is the word in the
pipeline string, its fields are the options, its docstring says what it may
assume, what it leaves, and shows IR before and after:

    @dataclass(frozen=True)
    class Simplify(Pass):
        "Fold and remove what needs no running."
        name = "pcp-simplify"
        max_iterations: int = 8

        def run(self, module: ir.Module) -> None:
            simplify(module, self.max_iterations)

`pcp-simplify{max-iterations=3}` then sets `max_iterations`.

Contract: a pass may assume that the module verifies, and leaves it verifying.
The pipeline checks that after each pass; in between it need not hold.
"""

import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, Self

from pcp.dialect.bindings import PassManager, ir
from pcp.dialect.diagnostics import diagnostics
from pcp.errors import PassError, PcpError, nearest


@dataclass(frozen=True)
class Pass:
    """Base of all passes; see the module's docstring."""

    name: ClassVar[str] = ""

    def run(self, module: ir.Module) -> None:
        """Rewrite `module` in place, or raise `PassError` at a location."""
        raise NotImplementedError

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Build the pass from `key=value` strings, as a pipeline writes them."""
        known = {option(f.name): f for f in fields(cls)}
        hints = typing.get_type_hints(cls)
        values: dict[str, Any] = {}
        for key, text in options.items():
            field = known.get(key.replace("_", "-"))
            if field is None:
                listed = ", ".join(known) or "none"
                raise PassError(
                    f"{cls.name}: unknown option {key!r} (options: {listed})."
                    + nearest(key, known)
                )
            _check_separator(cls.name, text, known)
            values[field.name] = _convert(cls.name, key, text, hints[field.name])
        for key, field in known.items():
            required = field.default is MISSING and field.default_factory is MISSING
            if required and field.name not in values:
                raise PassError(f"{cls.name}: option {key!r} is required")
        return cls(**values)

    def __str__(self) -> str:
        """The pass as the pipeline string writes it, defaults left out."""
        set_fields = [
            f"{option(f.name)}={_show(getattr(self, f.name))}"
            for f in fields(self)
            if getattr(self, f.name) != f.default
        ]
        return self.name + (f"{{{' '.join(set_fields)}}}" if set_fields else "")


def option(field: str) -> str:
    """A field's option name; `name_` is the option `name` (the pass has a name)."""
    return field.rstrip("_").replace("_", "-")


def _show(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    text = str(value)
    return f'"{text}"' if len(split_top_level(text, " ")) != 1 else text


def _check_separator(owner: str, text: str, known: Iterable[str]) -> None:
    """Refuse `func=main,wrt=0`, which would be a function named `main,wrt=0`."""
    for part in split_top_level(text)[1:]:
        key, equals, _ = part.partition("=")
        if equals and key.strip() in known:
            raise PassError(
                f"{owner}: {part.strip()!r} stands behind a comma; in a pipeline "
                f"options are separated by spaces: {owner}{{a=1 b=2}}"
            )


def _convert(owner: str, key: str, text: str, hint: Any) -> Any:
    """Read an option's text as its field's type."""
    if isinstance(hint, types.UnionType):
        hint = next(a for a in typing.get_args(hint) if a is not types.NoneType)
    try:
        if hint is bool:
            return {"true": True, "1": True, "": True, "false": False, "0": False}[text]
        if typing.get_origin(hint) is tuple:
            item = typing.get_args(hint)[0]
            return tuple(item(part) for part in text.split(",") if part)
        return hint(text)
    except (KeyError, ValueError) as error:
        kind = getattr(hint, "__name__", str(hint))
        if typing.get_origin(hint) is tuple:
            kind = f"list of {typing.get_args(hint)[0].__name__}, as {key}=0,2"
        raise PassError(f"{owner}: option {key}={text!r} is not a {kind}") from error


# --- the pipeline string -----------------------------------------------------

Lookup = Callable[[str], type[Pass] | None]


@dataclass(frozen=True)
class CppPasses:
    """A run of MLIR's own passes, kept as text for MLIR's parser."""

    text: str

    def run(self, module: ir.Module) -> None:
        """Run them through MLIR's pass manager."""
        with module.context:
            try:
                manager = PassManager.parse(f"builtin.module({self.text})")
            except ValueError as error:
                raise PassError(f"unknown pass in {self.text!r}: {error}") from error
            try:
                manager.run(module.operation)
            except ir.MLIRError as error:
                where = diagnostics(error, "-")
                raise PassError(f"{where} (in {self.text})") from error

    @property
    def name(self) -> str:
        """The pass names without nesting or options, for printing and timing."""
        return self.text

    def __str__(self) -> str:
        return self.text


Step = Pass | CppPasses


@dataclass(frozen=True)
class Pipeline:
    """Passes in order.

    `observe(step, module, when)` is called with `when` "before" and "after"
    each pass, or "failed": timing, printing and crash dumps are observers, not
    flags inside the loop.
    """

    steps: tuple[Step, ...]

    def run(
        self,
        module: ir.Module,
        observers: Iterable["Observer"] = (),
        *,
        verify_each: bool = True,
    ) -> ir.Module:
        """Run every pass in place; returns `module` for chaining."""
        observers = list(observers)
        for step in self.steps:
            for observe in observers:
                observe(step, module, "before")
            try:
                step.run(module)
                if verify_each:
                    verify(module, step.name)
            except Exception as error:
                for observe in observers:
                    observe(step, module, "failed")
                where = type(step).__module__
                known = isinstance(error, PcpError | ir.MLIRError)
                if known or where.startswith("pcp."):
                    raise
                raise PassError(  # not a bug of pcp's
                    f"{step.name}, a pass of the extension {where}: "
                    f"{type(error).__name__}: {error}"
                ) from error
            for observe in observers:
                observe(step, module, "after")
        return module

    def __str__(self) -> str:
        return f"builtin.module({','.join(map(str, self.steps))})"


Observer = Callable[[Step, ir.Module, str], None]


def verify(module: ir.Module, after: str) -> None:
    """Raise `PassError` if the pass `after` left invalid IR."""
    try:
        with module.context:
            module.operation.verify()
    except ir.MLIRError as error:
        raise PassError(f"{diagnostics(error, '-')} (after {after})") from error


def parse_pipeline(text: str, lookup: Lookup) -> Pipeline:
    """Read `builtin.module(pcp-grad{func=main},cse,func.func(canonicalize))`.

    Names that `lookup` knows become pcp passes; everything else is handed to
    MLIR's parser as it stands. A bare list without `builtin.module(...)` is
    read as its inside.
    """
    body = text.strip()
    if body.startswith("builtin.module(") and body.endswith(")"):
        body = body.removeprefix("builtin.module(").removesuffix(")")
    return Pipeline(tuple(_step(item, lookup) for item in split_top_level(body)))


def _step(item: str, lookup: Lookup) -> Step:
    name, _, rest = item.partition("{")
    name = name.strip()
    if (cls := lookup(name)) is not None:
        if rest and not rest.endswith("}"):
            raise PassError(f"{item!r}: the options' closing brace is missing")
        return cls.from_options(parse_options(rest.removesuffix("}")))
    return CppPasses(item)


def split_top_level(text: str, separator: str = ",") -> list[str]:
    """Split on `separator` outside of any bracket or quote; drops empty parts."""
    parts, depth, start, quote = [], 0, 0, False
    for i, char in enumerate(text):
        if char == '"':
            quote = not quote
        elif quote:
            continue
        elif char in "({[<":
            depth += 1
        elif char in ")}]>":
            depth -= 1
            if depth < 0:
                raise PassError(f"unbalanced {char!r} in the pipeline {text!r}")
        elif char == separator and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    if depth or quote:
        raise PassError(f"unbalanced brackets in the pipeline {text!r}")
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def parse_options(text: str) -> dict[str, str]:
    """`a=1 b=x{lr=0.1}` to a dict; values may hold brackets and quoted spaces."""
    options: dict[str, str] = {}
    for part in split_top_level(text, " "):
        key, equals, value = part.partition("=")
        options[key] = value.strip('"') if equals else ""
    return options
