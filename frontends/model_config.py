"""What a model's folder, as transformers saves it, says of the model."""

from pathlib import Path
from typing import Any

from pcp import outside
from pcp.errors import ConfigError


def read_config(folder: str | Path) -> dict[str, Any]:
    """The `config.json` of a folder; `ConfigError` where there is none."""
    path = Path(folder) / "config.json"
    found = outside.read_object(path)
    if "model_type" not in found:
        raise ConfigError(f"{path}: names no model_type; is it of transformers?")
    return found
