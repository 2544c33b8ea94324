"""pcp-lora against peft: the same loss, the same gradients, files that it reads."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pcp
from pcp.errors import ConfigError, UsageError
from pcp.runtime.program.executor import Program
from pcp.training.trainer.step_loop import Steps

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


def adapted(peft: Any, model: Model, *, dora: bool) -> Any:
    """By peft, with adapters that are not zero."""
    config = peft.LoraConfig(
        r=R, lora_alpha=ALPHA, target_modules=["up", "down"], use_dora=dora
    )
    made = peft.get_peft_model(model, config)
    torch.manual_seed(2)
    for name, parameter in made.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return made


def adapters(made: Any) -> dict[str, Any]:
    """peft's parameters by pcp's names."""
    renamed = {
        name.removeprefix("base_model.model.").replace(".default", ""): parameter
        for name, parameter in made.named_parameters()
        if "lora" in name
    }
    return {
        name.replace("magnitude_vector.weight", "magnitude_vector"): parameter
        for name, parameter in renamed.items()
    }


LORA = f"r={R},alpha={ALPHA},targets=up.weight|down.weight"


@pytest.mark.parametrize("dora", [False, True])
def test_loss_gradients_and_files_are_those_of_peft(
    tmp_path: Path, peft: Any, dora: bool
) -> None:
    said = f"{LORA},dora=true" if dora else LORA
    bundle = pcp.compile(
        pcp.from_torch(Model(), given()), optimizer="sgd", algorithm="none", lora=said
    )
    made = adapted(peft, Model(), dora=dora)
    wanted = made(given())
    wanted.backward()
    theirs = adapters(made)
    values = {name: p.detach().numpy() for name, p in Model().named_parameters()}
    base = dict(values)
    values |= {name: p.detach().numpy() for name, p in theirs.items()}
    with Program.load(bundle, device="local-sync") as program:
        grad = program.manifest.function("grad")
        roles = {t.name: t.role for t in grad.inputs}
        names = [t.name for t in grad.results][1:]
        loss, *found = program["grad"](
            *(values.get(t.name, given().numpy()) for t in grad.inputs)
        )
        kept = [t.name for t in program.manifest.function("apply").results]
        steps = Steps(program, program.manifest)
        steps.start(0, base)
        first = {name: np.array(a) for (_, name), a in steps.held("param").items()}
        steps.close()
    np.testing.assert_allclose(loss, wanted.detach().numpy(), rtol=1e-6)
    assert sorted(names) == sorted(theirs) == sorted(first)
    for name, gradient in zip(names, found, strict=True):
        np.testing.assert_allclose(
            gradient, theirs[name].grad.numpy(), atol=1e-6, err_msg=name
        )
        if "magnitude" in name:  # as peft begins it: nothing was trained there
            np.testing.assert_allclose(first[name], values[name], rtol=1e-6)
    frozen = [name for name, role in roles.items() if role == "frozen"]
    assert sorted(frozen) == sorted(dict(Model().named_parameters()))
    assert sorted(kept) == sorted([*theirs, "step"])
    # What is saved gives the same loss in peft.
    folder = str(tmp_path / "adapter")
    pcp.save_adapter(folder, {n: values[n] for n in theirs}, alpha=ALPHA)
    loaded = peft.PeftModel.from_pretrained(Model(), folder)
    np.testing.assert_allclose(float(loaded(given())), float(loss), rtol=1e-6)


@pytest.mark.slow  # a program more
def test_a_magnitude_follows_from_the_frozen_matrix_alone() -> None:
    """Its average too; without the matrix, or of a row of zeros, nothing begins."""
    bundle = pcp.compile(
        pcp.from_torch(Model(), given()),
        optimizer="sgd",
        algorithm="none",
        lora=f"r={R},targets=up.weight,dora=true",
        ema=0.9,
    )
    values = {name: p.detach().numpy() for name, p in Model().named_parameters()}
    name = "up.lora_magnitude_vector"
    assert name not in [t.name for t in bundle.manifest.function("init").results]
    with Program.load(bundle, device="local-sync") as program:
        steps = Steps(program, bundle.manifest)
        steps.start(0, values)
        wanted = np.linalg.norm(values["up.weight"], axis=1)
        for key in (("param", name), ("model_state", f"ema.{name}")):
            held = np.asarray(steps.held(key[0])[key])
            np.testing.assert_allclose(held, wanted, rtol=1e-6)
        own = values | {name: np.full(16, 3, np.float32)}
        steps.start(0, own)  # what is given goes first, for the average too
        for key in (("param", name), ("model_state", f"ema.{name}")):
            assert (np.asarray(steps.held(key[0])[key]) == 3).all()
        lacking = {n: a for n, a in values.items() if n != "up.weight"}
        with pytest.raises(UsageError, match=r"no frozen 'up\.weight' is given"):
            steps.start(0, lacking)
        values["up.weight"] = values["up.weight"] * (np.arange(16) != 5)[:, None]
        with pytest.raises(ConfigError, match="along dimension 1, and number 5 is ze"):
            steps.start(0, values)
        steps.close()


def test_what_is_no_adapter_is_refused(tmp_path: Path) -> None:
    a, b = np.zeros((4, 8), np.float32), np.zeros((8, 4), np.float32)
    with pytest.raises(ConfigError, match=r"no \.lora_A\.weight among up\.weight"):
        pcp.save_adapter(tmp_path, {"up.weight": a})
    unlike = {"x.lora_A.weight": a, "x.lora_B.weight": b, "y.lora_A.weight": a}
    with pytest.raises(ConfigError, match="2 modules, 1 of them with"):
        pcp.save_adapter(tmp_path, unlike)
    both = unlike | {"y.lora_B.weight": b, "y.lora_magnitude_vector": b[:, 0]}
    with pytest.raises(ConfigError, match=r"1 of 2 modules have \.lora_magnitude_vec"):
        pcp.save_adapter(tmp_path, both)
