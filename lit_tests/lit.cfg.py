"""The IR regression suite: `lit lit_tests`.

Tools are those of the environment that runs lit. `PCP_ROUNDTRIP` is: parse,
print in generic form, parse again, print.
"""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

#: lit defines both before it runs this file.
config: Any = globals()["config"]
lit_config: Any = globals()["lit_config"]

BIN = Path(sys.executable).parent  # of the link: a venv's python points elsewhere
TOOLS = ("filecheck", "pcp", "pcp-compile", "pcp-opt")

config.name = "pcp"
sys.path.insert(0, str(Path(__file__).parent))
from forked import ForkedTools  # noqa: E402

config.test_format = ForkedTools(execute_external=False)
config.suffixes = [".mlir", ".test", ".py"]
config.excludes = ["lit.cfg.py", "forked.py"]
config.test_source_root = str(Path(__file__).parent)

if missing := [tool for tool in TOOLS if not (BIN / tool).exists()]:
    lit_config.fatal(f"{BIN} lacks {', '.join(missing)}: pip install -e '.[dev]'")
config.environment["PATH"] = f"{BIN}:{config.environment['PATH']}"
if path := os.environ.get("PYTHONPATH"):  # another checkout than the installed one
    config.environment["PYTHONPATH"] = path

config.substitutions += [
    ("PCP_ROUNDTRIP", "pcp-opt %s --mlir-print-op-generic | pcp-opt -"),
    ("%python", sys.executable),
]
config.available_features |= {
    name for name in ("jax", "torch") if importlib.util.find_spec(name)
}

config.maxIndividualTestTime = 60
