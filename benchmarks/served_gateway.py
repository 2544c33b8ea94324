"""A gateway over an engine, in a thread of this process, and its tokenizer."""

import asyncio
import json
import threading
import time
from pathlib import Path

from pcp.serving.client import Client
from pcp.serving.gateway.gateway import Gateway, Options
from pcp.serving.gateway.served_models import Model
from pcp.serving.interface import Engine


def write_tokenizer(folder: Path, vocabulary: int) -> None:
    """Each token is a word, its number."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {str(number): number for number in range(vocabulary)}
    made = Tokenizer(models.WordLevel(words, unk_token="0"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "1"}))


class Served:
    """A gateway over an engine, in a thread, while inside."""

    def __init__(self, folder: Path, engine: Engine) -> None:
        options = Options(scheduler={"reuse": False})
        model = Model(("model",), folder)
        self.gateway = Gateway(lambda _: engine, [model], options, log=print)
        self._sock = self.gateway.listen("127.0.0.1", 0)
        serve = self.gateway.serve(self._sock)
        self._thread = threading.Thread(target=asyncio.run, args=(serve,))

    def __enter__(self) -> Client:
        self._thread.start()
        client = Client(f"http://127.0.0.1:{self._sock.getsockname()[1]}")
        while not self.gateway.ready:
            time.sleep(0.01)
        return client

    def __exit__(self, *_: object) -> None:
        self.gateway.stop()
        self._thread.join()
        self._sock.close()
