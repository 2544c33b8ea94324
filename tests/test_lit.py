"""The test format of lit_tests: what a forked tool does wrong is a test that fails."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.repository.sources import ROOT

RIGHT = {
    "text": "// RUN: pcp-opt %s | filecheck %s\n// CHECK: @main",
    "error": "// RUN: not pcp-opt %s --none 2>&1 | filecheck %s\n// CHECK: 'none'",
    "file": "// RUN: pcp-opt %s -o %t && cat %t | pcp-opt - | filecheck %s\n"
    "// CHECK: @main",
}
WRONG = {
    "text": "// RUN: pcp-opt %s | filecheck %s\n// CHECK: @other",
    "error": "// RUN: pcp-opt %s --none",
    "no_error": "// RUN: not pcp-opt %s",
    "first_of_two": "// RUN: pcp-opt %s --none | cat",
    "abort": "// RUN: not env PCP_ABORT=1 pcp-opt %s",
}
ABORTING = """
main = tools()["pcp-opt"]
tools()["pcp-opt"] = lambda: os.abort() if os.environ.get("PCP_ABORT") else main()
"""


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What lit says of each file: PASS or FAIL."""
    folder = tmp_path_factory.mktemp("lit")
    for name in ("lit.cfg.py", "forked.py"):
        shutil.copy(ROOT / "lit_tests" / name, folder)
    with open(folder / "forked.py", "a") as file:
        file.write(ABORTING)
    for kind, tests in (("right", RIGHT), ("wrong", WRONG)):
        for name, lines in tests.items():
            path = folder / f"{kind}_{name}.mlir"
            path.write_text(f"{lines}\nfunc.func @main() {{ return }}\n")
    command = [Path(sys.executable).parent / "lit", "-v", folder]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120)
    rows = [line.split() for line in said.stdout.splitlines() if " :: " in line]
    return {row[3]: row[0] for row in rows if row[0] in ("PASS:", "FAIL:")}


@pytest.mark.parametrize("name", RIGHT)
def test_right_tools_pass(name: str, verdicts: dict[str, str]) -> None:
    assert verdicts[f"right_{name}.mlir"] == "PASS:"


@pytest.mark.parametrize("name", WRONG)
def test_wrong_tools_fail(name: str, verdicts: dict[str, str]) -> None:
    assert verdicts[f"wrong_{name}.mlir"] == "FAIL:"
