"""What tests ask a gateway, and the closed form's answers to it."""

from helpers.serving.closed_form import answer
from helpers.serving.live import Paced

from pcp.serving.interface import Sampling
from pcp.serving.tokens.tokenizer import Tokenizer

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "hi"}]


def engine(slots: int = 4, context: int = 400, chunk: int = 32) -> Paced:
    """An engine of the closed form that takes its time."""
    return Paced(slots, context, chunk, vocabulary=320)


def wanted(tokenizer: Tokenizer, prompt: list[int], limit: int, seed: int = 0) -> str:
    """The text of the closed form's answer."""
    sampling = Sampling(seed=seed)
    stop = tokenizer.stop
    rest = {"vocabulary": 320, "context": 400, "sampling": sampling}
    tokens, _ = answer(prompt, limit, stop, **rest)
    return tokenizer.decode(tokens)


def chat_tokens(tokenizer: Tokenizer, text: str = "hi") -> list[int]:
    """The tokens of a chat of one message, as the template has it."""
    return tokenizer.encode(f"<|user|>{text}</s><|assistant|>", special=False)
