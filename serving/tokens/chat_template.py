"""A conversation as the text that a model was trained on, by its own template.

The template is Jinja, in `chat_template.jinja` or in `tokenizer_config.json`. It is
somebody else's program: it runs in Jinja's sandbox and changes nothing.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from pcp import strict_json
from pcp.errors import ConfigError, UsageError
from pcp.serving.tokens.tokenizer import needed, read_json


class ChatTemplate:
    """Renders conversations. `named` are the special tokens that templates name."""

    def __init__(self, source: str, named: Mapping[str, str], where: str = "") -> None:
        sandbox = needed("jinja2.sandbox")
        self._jinja = needed("jinja2")
        self._where, self._named = where or "the chat template", named
        made = sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        made.filters["tojson"] = _tojson
        made.globals["raise_exception"] = self._refuse
        made.globals["strftime_now"] = lambda shape: datetime.now().strftime(shape)
        try:
            self._template = made.from_string(source)
        except self._jinja.TemplateError as error:
            raise ConfigError(f"{self._where}: {error}") from error

    @classmethod
    def of(
        cls, folder: Path, named: Mapping[str, str], file: Path | None = None
    ) -> "ChatTemplate | None":
        """The template of a model's folder, or of a file; None where there is none."""
        path = file or folder / "chat_template.jinja"
        try:
            return cls(path.read_text(), named, str(path))
        except OSError as error:
            if file:
                raise ConfigError(f"{path}: {error.strerror}") from error
        found = read_json(folder, "tokenizer_config.json").get("chat_template")
        if isinstance(found, list):  # several by name
            by_name = {entry["name"]: entry["template"] for entry in found}
            found = by_name.get("default")
        if not isinstance(found, str):
            return None
        return cls(found, named, str(folder / "tokenizer_config.json"))

    def render(self, messages: Sequence[Mapping[str, Any]], **more: Any) -> str:
        """The prompt that asks for the next message; UsageError where it refuses."""
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=True, **self._named, **more
            )
        except self._jinja.TemplateError as error:
            raise UsageError(f"{self._where} refuses the messages: {error}") from error
        except (TypeError, ValueError, AttributeError, KeyError) as error:
            raise UsageError(
                f"{self._where} fails for the messages: {error}"
            ) from error

    def _refuse(self, why: str) -> NoReturn:
        raise self._jinja.TemplateError(why)


def _tojson(value: Any, indent: int | None = None) -> str:
    """As transformers' templates expect it: characters as they are."""
    return strict_json.dumps(value, ensure_ascii=False, indent=indent)
