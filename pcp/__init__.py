"""pcp: a compiler-centric toolkit for distributed training on MLIR.

The names in `__all__` are the public API. They load on first use, so
`import pcp.runtime` on a worker never imports the compiler.
"""

from typing import TYPE_CHECKING

from pcp.door import opened
from pcp.version import VERSION

if TYPE_CHECKING:
    from pcp.bundle import Bundle
    from pcp.passes.training.optimizers.spec import (
        SGD,
        Adafactor,
        AdamW,
        Lion,
        Muon,
        Nesterov,
    )
    from pcp.runtime.communicator.communicator import Communicator
    from pcp.runtime.program.executor import Program
    from pcp.tools.api import (
        compile,
        from_equinox,
        from_flax,
        from_haiku,
        from_hf,
        from_jax,
        from_nnx,
        from_optax,
        from_torch,
        grad,
        load,
        load_extension,
        run_passes,
        train,
    )
    from pcp.tools.extension import Extension
    from pcp.training.observe.callbacks import Callbacks
    from pcp.training.storage.adapter_files import save_adapter

__version__ = VERSION
__all__ = [
    "SGD",
    "Adafactor",
    "AdamW",
    "Bundle",
    "Callbacks",
    "Communicator",
    "Extension",
    "Lion",
    "Muon",
    "Nesterov",
    "Program",
    "compile",
    "from_equinox",
    "from_flax",
    "from_haiku",
    "from_hf",
    "from_jax",
    "from_nnx",
    "from_optax",
    "from_torch",
    "grad",
    "load",
    "load_extension",
    "run_passes",
    "save_adapter",
    "train",
]

_HOMES = {
    "SGD": "pcp.passes.training.optimizers.spec",
    "Adafactor": "pcp.passes.training.optimizers.spec",
    "AdamW": "pcp.passes.training.optimizers.spec",
    "Bundle": "pcp.bundle",
    "Callbacks": "pcp.training.observe.callbacks",
    "Communicator": "pcp.runtime.communicator.communicator",
    "Extension": "pcp.tools.extension",
    "Lion": "pcp.passes.training.optimizers.spec",
    "Muon": "pcp.passes.training.optimizers.spec",
    "Nesterov": "pcp.passes.training.optimizers.spec",
    "Program": "pcp.runtime.program.executor",
    "compile": "pcp.tools.api",
    "from_equinox": "pcp.tools.api",
    "from_flax": "pcp.tools.api",
    "from_haiku": "pcp.tools.api",
    "from_hf": "pcp.tools.api",
    "from_jax": "pcp.tools.api",
    "from_nnx": "pcp.tools.api",
    "from_optax": "pcp.tools.api",
    "from_torch": "pcp.tools.api",
    "grad": "pcp.tools.api",
    "load": "pcp.tools.api",
    "load_extension": "pcp.tools.api",
    "run_passes": "pcp.tools.api",
    "save_adapter": "pcp.training.storage.adapter_files",
    "train": "pcp.tools.api",
}

__getattr__ = opened(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
