"""A user's own dialects, passes, derivative rules, optimizers and outer algorithms.

A Python file, or an installed package, names what it brings in one `Extension`:

    EXTENSION = Extension(
        dialects=(Mine,),
        rules={"mine.square": Elementwise(...)},
        passes=(LowerMine,),
        lowering=("lower-mine",),
    )

`--load file.py` of pcp-opt and pcp-compile, the experiment's key `extensions` and
`pcp.load_extension` read a file. A package needs no flag: it names its `Extension`
under the entry point group `pcp.extensions`. What is loaded stays for the process; a
name that is taken is an error. Workers run compiled programs, and load no extension.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from pcp.autodiff.core import registry
from pcp.autodiff.core.kinds import Rule
from pcp.compiler import catalog, pipelines
from pcp.dialect import loading
from pcp.dialect.bindings import ext
from pcp.errors import ConfigError, PcpError
from pcp.passes.core import spec as specs
from pcp.passes.core.base import Pass
from pcp.passes.sharding import rules as sharding_rules
from pcp.passes.sharding.rules.written import Written
from pcp.passes.training.optimizers import spec as optimizers
from pcp.passes.training.optimizers.rule import OptimizerRule
from pcp.passes.training.optimizers.spec import Optimizer
from pcp.passes.training.outer import spec as outer
from pcp.passes.training.outer.rule import OuterRule
from pcp.tools.kept_bundle import GROUP

NAME = "EXTENSION"


@dataclass(frozen=True)
class Extension:
    """What a file or a package adds to pcp. Everything may be left out.

    dialects: with their ops, made by `pcp.dialect.bindings.ext`.
    passes: run by name, in `pcp-opt` and below.
    rules: derivative rules by op (`mine.square`) or `composite:<name>`.
    sharding: factor rules by op or `custom_call:<target>`, by which a mesh cuts it:
        a text such as `([i, j], [j])->([i]) reduction={j}`, or what gives it for an op
        (`passes/sharding/rules/written.py`).
    optimizers, algorithms: a class of options, and what builds its programs.
    prepare: pipeline text of passes that run on the whole program when pcp-compile has
        read it, in front of its derivative.
    lowering: pipeline text of passes that run on each device's program, behind the
        derivative and the partition; they leave StableHLO.
    """

    dialects: tuple[type[ext.Dialect], ...] = ()
    passes: tuple[type[Pass], ...] = ()
    rules: Mapping[str, Rule] = field(default_factory=dict)
    sharding: Mapping[str, Written] = field(default_factory=dict)
    optimizers: Mapping[type[Optimizer], OptimizerRule] = field(default_factory=dict)
    algorithms: Mapping[type[specs.Spec], OuterRule] = field(default_factory=dict)
    prepare: tuple[str, ...] = ()
    lowering: tuple[str, ...] = ()

    def register(self) -> None:
        """Make everything known to this process; `ConfigError` for a name twice."""
        for name, rule in self.rules.items():
            _check_rule(name, rule)
        for dialect in self.dialects:
            loading.register(dialect)
        for cls in self.passes:
            catalog.register(cls)
        for name, rule in self.rules.items():
            registry.register(name, rule)
        for name, written in self.sharding.items():
            sharding_rules.register(name, written)
        for kind, update in self.optimizers.items():
            specs.register(optimizers.KINDS, kind, update)
        for kind, step in self.algorithms.items():
            specs.register(outer.KINDS, kind, step)
        pipelines.register(self.prepare, self.lowering)


_loaded: dict[str, Extension] = {}


def load(path: str | Path) -> Extension:
    """Read a Python file that has an `EXTENSION`, and register that; once a file.

    `ConfigError` where there is none, or where the file itself fails.
    """
    where = str(Path(path).resolve())
    if where not in _loaded:
        _add(where, lambda: _read(Path(where)))
    return _loaded[where]


def load_all(files: Iterable[str | Path]) -> None:
    """The extensions of installed packages, then those in `files`."""
    load_installed()
    for file in files:
        load(file)


def loaded() -> bool:
    """Whether this process has any."""
    return bool(_loaded)


@cache
def load_installed() -> None:
    """Register the extensions of installed packages; once a process."""
    for point in entry_points(group=GROUP):
        _add(f"{point.name} = {point.value}", point.load)


def _add(where: str, read: Callable[[], object]) -> None:
    try:
        extension = read()
        if not isinstance(extension, Extension):
            raise ConfigError(f"{type(extension).__name__} is no pcp.Extension")
        extension.register()
    except PcpError as error:
        raise ConfigError(f"extension {where}: {error}") from error
    except (Exception, SystemExit) as error:
        message = f"{type(error).__name__}: {error}"
        raise ConfigError(f"extension {where}: {message}") from error
    _loaded[where] = extension


def _read(path: Path) -> object:
    """`EXTENSION` of a Python file, which is run as a module of its own name."""
    if not path.is_file():
        raise ConfigError("no such file")
    name = f"{__name__}:{path}"
    spec = spec_from_file_location(name, path) if path.suffix == ".py" else None
    if spec is None or spec.loader is None:
        raise ConfigError("not a Python file; give one that ends in .py")
    module = module_from_spec(spec)
    # Dataclasses look their module up by its name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    found = getattr(module, NAME, None)
    if found is None:
        raise ConfigError(f"it has no {NAME} = pcp.Extension(...)")
    return found


def _check_rule(name: str, rule: object) -> None:
    """`ConfigError` for what is no rule, or for the op of another one."""
    if not callable(getattr(rule, "vjp", None)):
        raise ConfigError(f"{name}: {type(rule).__name__} is no derivative rule")
    if registry.find(name) not in (None, rule):
        raise ConfigError(f"{name} has a derivative rule already; name an op of yours")
