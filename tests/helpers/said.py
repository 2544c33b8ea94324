"""What a command said when it refused."""

import pytest


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of an error, which is no traceback."""
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    assert "Traceback" not in error
    return error
