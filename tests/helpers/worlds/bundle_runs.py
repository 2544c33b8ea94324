"""What `pcp run` makes of a bundle, in this process."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pcp.tools import cli
from pcp.tools.support.tensor_files import save


def save_npz(path: str | Path, arrays: Mapping[str, Any]) -> None:
    """The arrays in an .npz, under their names."""
    save(path, [*arrays], [*arrays.values()])


def ran(
    bundle: Path, inputs: Path | Mapping[str, Any], *flags: str
) -> dict[str, np.ndarray]:
    """What a run wrote, by name; `inputs` are arrays, or a file of them."""
    if not isinstance(inputs, Path):
        save_npz(bundle.with_name("in.npz"), inputs)
        inputs = bundle.with_name("in.npz")
    out = bundle.with_suffix(".npz")
    files = ["--inputs", str(inputs), "--out", str(out)]
    assert cli.main(["run", str(bundle), *files, *flags]) == 0
    with np.load(out) as archive:
        return {name: archive[name] for name in archive.files}
