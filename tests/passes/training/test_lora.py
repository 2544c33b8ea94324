"""pcp-lora against peft: the same loss, the same gradients, files that it reads."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pcp
from pcp.errors import ConfigError
from pcp.runtime.program.executor import Program

torch = pytest.importorskip("torch")

R, ALPHA = 4, 8.0


class Model(torch.nn.Module):
    """Two products with adapters, and one without."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = torch.nn.Linear(8, 16)
        self.down = torch.nn.Linear(16, 8, bias=False)
        self.head = torch.nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        y = x + self.down(torch.tanh(self.up(x)))
        return self.head(y).square().mean()


@pytest.fixture(scope="module")
def peft() -> Any:
    """Imported by the process that runs the test: it takes seconds."""
    return pytest.importorskip("peft")


def given() -> Any:
    return torch.randn(5, 7, 8, generator=torch.Generator().manual_seed(1))


def adapted(peft: Any, model: Model) -> Any:
    """By peft, with adapters that are not zero."""
    config = peft.LoraConfig(r=R, lora_alpha=ALPHA, target_modules=["up", "down"])
    made = peft.get_peft_model(model, config)
    torch.manual_seed(2)
    for name, parameter in made.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return made


def adapters(made: Any) -> dict[str, Any]:
    """peft's parameters by pcp's names."""
    return {
        name.removeprefix("base_model.model.").replace(".default", ""): parameter
        for name, parameter in made.named_parameters()
        if "lora" in name
    }


LORA = f"r={R},alpha={ALPHA},targets=up.weight|down.weight"


def test_loss_gradients_and_files_are_those_of_peft(tmp_path: Path, peft: Any) -> None:
    bundle = pcp.compile(
        pcp.from_torch(Model(), given()), optimizer="sgd", algorithm="none", lora=LORA
    )
    made = adapted(peft, Model())
    wanted = made(given())
    wanted.backward()
    theirs = adapters(made)
    values = {name: p.detach().numpy() for name, p in Model().named_parameters()}
    values |= {name: p.detach().numpy() for name, p in theirs.items()}
    with Program.load(bundle, device="local-sync") as program:
        grad = program.manifest.function("grad")
        roles = {t.name: t.role for t in grad.inputs}
        names = [t.name for t in grad.results][1:]
        loss, *found = program["grad"](
            *(values.get(t.name, given().numpy()) for t in grad.inputs)
        )
        kept = [t.name for t in program.manifest.function("apply").results]
    np.testing.assert_allclose(loss, wanted.detach().numpy(), rtol=1e-6)
    assert sorted(names) == sorted(theirs)
    for name, gradient in zip(names, found, strict=True):
        np.testing.assert_allclose(
            gradient, theirs[name].grad.numpy(), atol=1e-6, err_msg=name
        )
    frozen = [name for name, role in roles.items() if role == "frozen"]
    assert sorted(frozen) == sorted(dict(Model().named_parameters()))
    assert sorted(kept) == sorted([*theirs, "step"])
    # What is saved gives the same loss in peft.
    folder = str(tmp_path / "adapter")
    pcp.save_adapter(folder, {n: values[n] for n in theirs}, alpha=ALPHA)
    loaded = peft.PeftModel.from_pretrained(Model(), folder)
    np.testing.assert_allclose(float(loaded(given())), float(loss), rtol=1e-6)


def test_what_is_no_adapter_is_refused(tmp_path: Path) -> None:
    a, b = np.zeros((4, 8), np.float32), np.zeros((8, 4), np.float32)
    with pytest.raises(ConfigError, match=r"no \.lora_A\.weight among up\.weight"):
        pcp.save_adapter(tmp_path, {"up.weight": a})
    unlike = {"x.lora_A.weight": a, "x.lora_B.weight": b, "y.lora_A.weight": a}
    with pytest.raises(ConfigError, match="2 modules, 1 of them with"):
        pcp.save_adapter(tmp_path, unlike)
