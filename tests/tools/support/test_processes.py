"""Processes of a command: they meet, and none stays behind."""

import subprocess
import sys

import pytest

from pcp.errors import PcpError, RuntimeFault
from pcp.tools.support import processes

MEETING = "meeting at "


def _python(code: str) -> processes.Process:
    command = [sys.executable, "-u", "-c", code]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_all_learn_the_address_and_end_with_the_block() -> None:
    addresses = []

    def start(rank: int, address: str) -> processes.Process:
        addresses.append(address)
        return _python(f"print('{MEETING}host:7'); import time; time.sleep(60)")

    with processes.ranks(3, start, MEETING) as running:
        assert [process.poll() for process in running] == [None] * 3
    assert addresses == ["127.0.0.1:0", "host:7", "host:7"]
    assert all(process.poll() is not None for process in running)


def test_rank_0_that_ends_first() -> None:
    def start(rank: int, address: str) -> processes.Process:
        return _python("print('no')")

    with (
        pytest.raises(PcpError, match="ended before it listened"),
        processes.ranks(2, start, MEETING),
    ):
        pass


def test_rank_0_that_is_killed_before_it_listens() -> None:
    """That is a kill as any other, behind which a run begins again."""

    def start(rank: int, address: str) -> processes.Process:
        return _python("import os; os.kill(os.getpid(), 9)")

    with (
        pytest.raises(processes.MemberKilled, match="rank 0 was killed by SIGKILL"),
        processes.ranks(2, start, MEETING),
    ):
        pass


def test_what_rank_0_says_is_heard_and_does_not_fill_the_pipe() -> None:
    line = "x" * 100
    code = f"print('{MEETING}here')\nfor _ in range(2000): print({line!r})"
    heard = []
    with processes.ranks(1, lambda *_: _python(code), MEETING, heard.append) as running:
        assert running[0].wait(30) == 0
    assert heard == 2000 * [f"{line}\n"]


def test_who_does_not_listen_holds_nobody_up() -> None:
    def hear(_: str) -> None:
        raise BrokenPipeError

    code = f"print('{MEETING}here'); print('more')"
    with processes.ranks(1, lambda *_: _python(code), MEETING, hear) as running:
        assert running[0].wait(30) == 0


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("raise SystemExit(3)", "rank 1 ended with exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", "rank 1 was killed by SIGKILL"),
    ],
)
def test_the_rank_that_fails_is_named(code: str, says: str) -> None:
    running = [_python("pass"), _python(code)]
    try:
        with pytest.raises(RuntimeFault, match=says):
            processes.wait(running)
    finally:
        for process in running:
            process.kill()
            process.communicate()
