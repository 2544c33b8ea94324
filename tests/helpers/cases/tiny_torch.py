"""The smallest model of PyTorch that islands share: rules that cut it along tp."""

import pytest

torch = pytest.importorskip("torch")

VOCABULARY, WIDTH, BATCH, BLOCK = 64, 16, 4, 8
RULES = {
    "embedding.weight": [[], ["tp"]],
    "hidden.weight": [["tp"], []],
    "hidden.bias": [["tp"]],
    "head.weight": [[], ["tp"]],
}
"""head.bias is whole on both ranks."""


class Tiny(torch.nn.Module):
    """Embedding, tanh layer, head."""

    def __init__(self, vocabulary: int = VOCABULARY, width: int = WIDTH) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(vocabulary, width)
        self.hidden = torch.nn.Linear(width, width)
        self.head = torch.nn.Linear(width, vocabulary)

    def forward(self, ids, targets):
        logits = self.head(torch.tanh(self.hidden(self.embedding(ids))))
        flat = logits.reshape(-1, logits.shape[-1])
        return torch.nn.functional.cross_entropy(flat, targets.reshape(-1))
