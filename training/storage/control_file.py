"""The control file of a run: the address of its shepherd, and the key for orders.

Only users that can read the run's folder have the key; every start of the shepherd
makes a new key.
"""

import secrets
from pathlib import Path
from typing import Any

from pcp import outside, strict_json, whole_file
from pcp.errors import ConfigError
from pcp.runtime.transport.address import WILDCARDS

CONTROL_FILE = "control.json"


def write_control(folder: Path, host: str, port: int) -> str:
    """Write the shepherd's address and a new key to the run's folder; the key."""
    key = secrets.token_hex(32)
    reached = "127.0.0.1" if host in WILDCARDS else host
    said = {"host": reached, "port": port, "key": key}
    with whole_file.replacing(folder / CONTROL_FILE, mode=0o600) as file:
        file.write(strict_json.dumps(said).encode())
    return key


def read_control(folder: str | Path) -> dict[str, Any]:
    """`host`, `port` and `key` of the shepherd of the run in `folder`."""
    path = Path(folder) / CONTROL_FILE
    try:
        values = outside.read_json(path)
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}; name the folder of a run that is going on, on "
            "the shepherd's machine"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{path}: not valid JSON: {error}") from error
    return values
