"""lit's shell, in which pcp's tools are forks of a process that has imported them.

A `pcp-opt` spends a third of a second on imports, ten times what a test needs. So each
worker of lit imports the tools once, and the commands `pcp-opt` and `filecheck` of a
RUN line are forks of it. A fork has the pipes, the folder and the arguments that the
started process had, and an abort ends it alone. Other commands are started as ever.
"""

import functools
import gc
import io
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import lit.formats
import lit.TestRunner

Tool = Callable[[], object]  # what the installed script calls; it reads sys.argv


@functools.cache
def tools() -> dict[str, Tool]:
    """The function of each tool; its imports are done, also those of every pass."""
    import filecheck.main

    import pcp.tools.extension
    import pcp.tools.opt
    import pcp.tools.support.opt_command  # which pcp.tools.opt imports when it runs
    from pcp.compiler import catalog
    from pcp.dialect.context import parse

    pcp.tools.extension.load_installed()  # looks at every package
    list(catalog.summaries())
    list(parse("func.func @main() { return }").body.operations)  # imports its class
    gc.collect()
    gc.freeze()  # else a fork's first collection copies all that was imported
    return {"pcp-opt": pcp.tools.opt.main, "filecheck": filecheck.main.main}


def popen(command: Sequence[str], **options: Any) -> "subprocess.Popen[str]":
    """Start a command for lit's shell; a known tool as a fork."""
    if (tool := tools().get(command[0])) is None:
        return subprocess.Popen(command, **options)
    run = functools.partial(_become, tool, list(command), options["env"])
    return subprocess.Popen(command, preexec_fn=run, **options)


def _become(tool: Tool, command: list[str], environment: Mapping[str, str]) -> None:
    """In the forked child: run the tool in place of what would be executed."""
    os.closerange(
        3, os.sysconf("SC_OPEN_MAX")
    )  # among them the pipe by which Popen waits for an exec
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = command
    sys.stdin, sys.stdout, sys.stderr = (
        io.TextIOWrapper(open(fd, mode + "b"), line_buffering=fd == 2)
        for fd, mode in enumerate("rww")
    )
    os._exit(_exit_code(tool))


def _exit_code(tool: Tool) -> int:
    try:
        code = tool()
    except SystemExit as ended:
        code = ended.code
    except Exception:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    return code if isinstance(code, int) else int(code is not None)


class ForkedTools(lit.formats.ShTest):
    """Tests of RUN lines, as `ShTest`."""

    def execute(self, test: Any, litConfig: Any) -> Any:
        """Run one test, in a worker of lit."""
        shell: Any = lit.TestRunner
        shell.subprocess = SimpleNamespace(**{**vars(subprocess), "Popen": popen})
        return super().execute(test, litConfig)
