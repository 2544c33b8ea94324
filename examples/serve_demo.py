"""Train a small Llama for about a minute, serve it on two ranks, and chat with it.

    python examples/serve_demo.py

The model continues text byte by byte. Its folder is as transformers writes one.
"""

import json
import subprocess
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

EXPERIMENT, OUT = Path(__file__).with_suffix(".json"), Path("serve-demo")
CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
CONFIG |= {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 3}
CONFIG |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 257}
CONFIG |= {"max_position_embeddings": 256, "eos_token_id": 256, "bos_token_id": 256}


def write_model(folder: Path) -> None:
    """A model without weights, which are drawn when training begins."""
    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())  # a character a byte
    vocabulary = {char: number for number, char in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocabulary | {"</s>": 256}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    (folder / "chat_template.jinja").write_text(template)


def pcp(*words: object, out: int | None = None) -> subprocess.Popen[str]:
    """A command of pcp."""
    command = [sys.executable, "-m", "pcp.tools.cli", *map(str, words)]
    return subprocess.Popen(command, text=True, stdout=out)


write_model(OUT / "llama")
sizes = ("--batch-size", 16, "--block-size", 64)
train = pcp("train", EXPERIMENT, "--hf", OUT / "llama", *sizes, "--run", OUT / "run")
if train.wait():
    raise SystemExit("the training failed")
serve = ("serve", OUT / "run" / "model", "--mesh", "tp=2", "--port", 0)
with pcp(*serve, out=subprocess.PIPE) as server:
    address, line = "", ""
    while server.stdout and not line.startswith("ready") and server.poll() is None:
        line = server.stdout.readline()
        address = line.split()[2] if line.startswith("serving at") else address
        print(line, end="", flush=True)
    say = ("--message", "The function returns ", "--max-tokens", 120)
    pcp("chat", address, *say, "--temperature", 0.5).wait()
    server.terminate()
