"""The functions of a loaded bundle, called with values by role and name."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from pcp.errors import BundleError
from pcp.manifest import Function, TensorSpec

Key = tuple[str, str]
"""The role and the name of an argument or a result of a function."""
Values = Mapping[Key, Any]


class Functions:
    """A program's functions; their results stay on the device."""

    def __init__(self, program: Any) -> None:
        self.program = program
        self.signatures: Mapping[str, Function] = program.manifest.functions
        self._keys: dict[str, tuple[list[Key], list[Key]]] = {}

    def __call__(
        self, name: str, values: Values, *, on_host: bool = False
    ) -> dict[Key, Any]:
        """Call a function with its arguments among `values`; returns its results.

        The results stay on the device, or are numpy arrays `on_host`.
        """
        takes, gives = self._border(name)
        if lacking := [key for key in takes if key not in values]:
            role, tensor = lacking[0]
            raise BundleError(
                f"@{name} takes {tensor!r} of the role {role!r}, which a training "
                "loop does not have"
            )
        arguments = [values[key] for key in takes]
        results = self.program[name](*arguments, device_arrays=not on_host)
        rows = results if isinstance(results, tuple) else (results,)
        return dict(zip(gives, rows, strict=True))

    def gives(self, name: str) -> bool:
        """Whether there is a function of this name with results."""
        return name in self.signatures and bool(self.signatures[name].results)

    def close(self) -> None:
        """Release the program."""
        self.program.close()

    def _border(self, name: str) -> tuple[list[Key], list[Key]]:
        """The keys of a function's arguments and results."""
        if name not in self._keys:
            signature = self.signatures[name]
            sides = signature.inputs, signature.results
            takes, gives = (_distinct(name, side) for side in sides)
            self._keys[name] = takes, gives
        return self._keys[name]


def _distinct(function: str, specs: Iterable[TensorSpec]) -> list[Key]:
    """The keys of these tensors; `BundleError` where two have the same key."""
    keys = [spec.key for spec in specs]
    for (role, name), count in Counter(keys).items():
        if count > 1:
            raise BundleError(
                f"@{function} has {count} tensors {name!r} of the role {role!r}; name "
                "the model's arguments apart and compile it again"
            )
    return keys
