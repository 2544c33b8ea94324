"""The flags of commands that ask a server, and the client that they ask for."""

import os
from argparse import ArgumentParser, Namespace
from pathlib import Path

from pcp.errors import ConfigError
from pcp.serving.client import Client

KEY = "PCP_API_KEY"
"""The variable whose value is the key, where no file is named."""


def add_client_flags(parser: ArgumentParser) -> None:
    """Where the server is, and who asks."""
    add = parser.add_argument
    add("url", metavar="URL", help="of the server, as http://127.0.0.1:8000")
    add("--key-file", type=Path, metavar="FILE", help=f"our key; default: ${KEY}")
    add("--tls-ca", type=Path, metavar="FILE", help="who signed its certificate (PEM)")
    add("--model", default="", metavar="NAME", help="default: the server's first")
    add("--timeout", type=float, default=600.0, metavar="S", help="for a connection")


def client_of(flags: Namespace) -> Client:
    """The client; ConfigError for a file that is not there."""
    key = os.environ.get(KEY)
    if flags.key_file is not None:
        try:
            key = flags.key_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--key-file {flags.key_file}: {error}") from error
    return Client(flags.url, key=key, seconds=flags.timeout, authority=flags.tls_ca)
