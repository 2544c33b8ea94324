"""The requests of OpenAI's API, as far as they are served.

A field that a server cannot honour is an error that names it; one that it does not know
is ignored, and a header of the answer says so.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from pcp.serving.sampling import MOST_BIAS

MOST_CHOICES = 16
MOST_STOPS = 16
MOST_LOGPROBS = 20
MOST_SLOTS = 1024

Number = Annotated[float, Field(allow_inf_nan=False)]
Bias = Annotated[float, Field(ge=-MOST_BIAS, le=MOST_BIAS)]


class TextPart(BaseModel):
    """A part of a message; only text is understood."""

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """One turn of a conversation; more keys reach the template as they are."""

    model_config = ConfigDict(extra="allow")
    role: str
    content: str | list[TextPart] | None = None

    def plain(self) -> dict[str, Any]:
        """For a template: the content as one text."""
        values = self.model_dump(exclude_none=True)
        parts = self.content
        if isinstance(parts, list):
            parts = "".join(part.text for part in parts)
        return values | {"content": parts or ""}


class StreamOptions(BaseModel):
    """What a stream has besides its pieces."""

    include_usage: bool = False


class JsonSchema(BaseModel):
    """A named schema of `response_format`."""

    model_config = ConfigDict(extra="allow")
    schema_: dict[str, Any] = Field(alias="schema")


class ResponseFormat(BaseModel):
    """The form of an answer."""

    type: Literal["text", "json_object", "json_schema", "regex"]
    json_schema: JsonSchema | None = None
    pattern: str | None = None


class TextRequest(BaseModel):
    """What both kinds of request share."""

    model_config = ConfigDict(extra="allow")
    model: str = ""
    max_tokens: int | None = Field(None, ge=1)
    temperature: Number = Field(1.0, ge=0, le=100)
    top_p: Number = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1)
    min_p: Number = Field(0.0, ge=0, le=1)
    n: int = Field(1, ge=1, le=MOST_CHOICES)
    stop: str | list[str] | None = None
    stop_token_ids: list[int] = Field(default_factory=list)
    seed: int | None = None
    presence_penalty: Number = Field(0.0, ge=-2, le=2)
    frequency_penalty: Number = Field(0.0, ge=-2, le=2)
    repetition_penalty: Number = Field(1.0, gt=0, le=10)
    logit_bias: dict[int, Bias] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    timeout: Number | None = Field(None, gt=0)
    user: str | None = None
    response_format: ResponseFormat | None = None

    @field_validator(
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "n",
        "stop_token_ids",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "stream",
        mode="before",
    )
    @classmethod
    def _default(cls, value: Any, info: Any) -> Any:
        """`null` is what is not said."""
        if value is None:
            return cls.model_fields[info.field_name].get_default(
                call_default_factory=True
            )
        return value

    @field_validator("stop")
    @classmethod
    def _few(cls, value: str | list[str] | None) -> str | list[str] | None:
        if isinstance(value, list) and len(value) > MOST_STOPS:
            raise ValueError(f"at most {MOST_STOPS} strings")
        return value

    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(stop)

    def unknown(self) -> list[str]:
        """Fields that are not understood, and have a value."""
        more = self.model_extra or {}
        return sorted(name for name, value in more.items() if value not in UNSAID)

    def limit(self) -> int | None:
        """How many tokens are asked for."""
        return self.max_tokens


UNSAID: tuple[Any, ...] = (None, [], {}, "", False)
#: Known to OpenAI's API, and not to be ignored: an answer without them is another one.
REFUSED = {
    "tools": "calling tools is not supported",
    "functions": "calling functions is not supported",
    "tool_choice": "calling tools is not supported",
    "function_call": "calling functions is not supported",
    "audio": "there is no audio here",
    "modalities": "there is only text",
    "suffix": "text cannot be inserted",
    "best_of": "answers are not ranked; ask for n",
    "prediction": "predicted outputs are not supported",
}
_HARMLESS: dict[str, tuple[Any, ...]] = {
    "tool_choice": ("none", "auto"),
    "modalities": (["text"],),
    "best_of": (1,),
}


def refused(asked: TextRequest) -> tuple[str, str] | None:
    """The first field that cannot be honoured, and why."""
    for name, why in REFUSED.items():
        value = (asked.model_extra or {}).get(name)
        if value not in UNSAID and value not in _HARMLESS.get(name, ()):
            return name, why
    return None


class ChatCompletion(TextRequest):
    """POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)

    def limit(self) -> int | None:
        """How many tokens are asked for; the newer name counts."""
        return self.max_completion_tokens or self.max_tokens


class Completion(TextRequest):
    """POST /v1/completions."""

    prompt: str | list[int] | list[str] | list[list[int]]
    max_tokens: int | None = Field(16, ge=1)
    logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    echo: bool = False


class Tokenize(BaseModel):
    """POST /tokenize."""

    model: str = ""
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool = True


class Detokenize(BaseModel):
    """POST /detokenize."""

    model: str = ""
    tokens: list[int]


class OtherWeights(BaseModel):
    """POST /v1/weights: a folder of the server's machine."""

    folder: str
    model: str = ""


class OtherModel(BaseModel):
    """POST /v1/operator/models: a folder of the server's machine, or a known name."""

    folder: str = ""
    name: str = ""
    slots: int | None = Field(None, ge=1, le=MOST_SLOTS)


class OtherSlots(BaseModel):
    """POST /v1/operator/models/{name}/scale."""

    slots: int = Field(ge=1, le=MOST_SLOTS)
