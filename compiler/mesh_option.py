"""`--mesh dp=4,tp=2` and `--split dp=5,2,1` as values."""

import re
from dataclasses import dataclass

from pcp.dialect.attributes import ELASTIC
from pcp.errors import ConfigError
from pcp.mesh import WORKERS, Mesh

_ELASTIC = (WORKERS, "island", "dp")
"""Names of the one axis whose size may be left to be found."""


@dataclass(frozen=True)
class AskedMesh:
    """The axes a program is spread over, and how many workers train with it.

    The axis "workers" cuts no program: each worker runs all of it, spread over the
    other axes (it is an island then), and the outer algorithm joins them. `island=-1`
    and `dp=-1` say the same. `workers` is their number, ELASTIC where that is found
    when they meet, None where nothing is said.
    """

    axes: dict[str, int]
    workers: int | None = None

    @property
    def size(self) -> int:
        """How many devices a worker's program is for."""
        return Mesh("", self.axes).size


def parse_mesh(text: str) -> AskedMesh:
    """`workers=elastic,dp=4,tp=2` as a value, or `ConfigError`."""
    axes: dict[str, int] = {}
    joined: dict[str, int] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*([A-Za-z_]\w*)=(\d+|-1|elastic)\s*", part)
        elastic = match is not None and match[2] in ("-1", "elastic")
        if match is None or (not elastic and int(match[2]) < 1):
            raise ConfigError(
                f"--mesh {text}: {part.strip()!r} is not axis=size with a size of at "
                "least 1; write it as dp=4,tp=2"
            )
        name = match[1]
        if elastic and name not in _ELASTIC:
            raise ConfigError(
                f'--mesh {text}: axis "{name}" has to have a size; only '
                f"{', '.join(_ELASTIC)} may be elastic"
            )
        if name in axes or name in joined:
            raise ConfigError(f'--mesh {text}: axis "{name}" is given twice')
        found = joined if elastic or name == WORKERS else axes
        found[name] = ELASTIC if elastic else int(match[2])
        if len(joined) > 1:
            raise ConfigError(
                f"--mesh {text}: {' and '.join(joined)} both join whole programs; one "
                "axis may do that, so leave one out or give it a size"
            )
    return AskedMesh(axes, next(iter(joined.values()), None))


def parse_split(text: str, mesh: Mesh) -> str:
    """`dp=5,2,1` as the attribute of a mesh, or `ConfigError`: a share per member."""
    match = re.fullmatch(r"\s*([A-Za-z_]\w*)=(\d+(?:,\d+)*)\s*", text)
    if match is None:
        raise ConfigError(f"--split {text}: write it as axis=share,share: dp=5,2,1")
    axis, shares = match[1], [int(share) for share in match[2].split(",")]
    if axis not in mesh.axes:
        known = ", ".join(mesh.axes)
        raise ConfigError(f'--split {text}: the mesh has no axis "{axis}" ({known})')
    if len(shares) != mesh.axes[axis]:
        raise ConfigError(
            f"--split {text}: {len(shares)} shares for the {mesh.axes[axis]} members "
            f'of axis "{axis}"; give one for each'
        )
    if not sum(shares):
        raise ConfigError(f"--split {text}: some member has to have a share")
    return f'#pcp.split<"{axis}", {shares}>'
