"""Files of adapters for peft: `adapter_model.safetensors` and its config.

pcp-lora names its parameters `q.lora_A.weight`, `q.lora_B.weight` and, of DoRA,
`q.lora_magnitude_vector`; peft has them under `base_model.model.`, and the modules,
`q`, in the config.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pcp import strict_json
from pcp.errors import ConfigError
from pcp.training.storage.safetensors_io import to_bytes
from pcp.training.storage.state_names import PARAMETER

PREFIX = "base_model.model."
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
ALPHA = 8.0
"""The default of `pcp-lora`."""
_A, _B, _MAGNITUDE = ".lora_A.weight", ".lora_B.weight", ".lora_magnitude_vector"


def save_adapter(
    folder: str | Path,
    tensors: Mapping[str, np.ndarray],
    *,
    alpha: float = ALPHA,
    base: str | None = None,
    task: str | None = None,
) -> None:
    """Write the adapters among `tensors` for `peft.PeftModel.from_pretrained`.

    `tensors` are parameters by name, or a checkpoint's; `alpha` is that of `pcp-lora`.
    `base` is the base model, a folder or a name, and `task` peft's word for its task,
    as CAUSAL_LM. `ConfigError` without adapters, or where their ranks differ.
    """
    named = {name.removeprefix(PARAMETER): array for name, array in tensors.items()}
    modules = [name.removesuffix(_A) for name in named if name.endswith(_A)]
    if not modules:
        raise ConfigError(
            f"{folder}: no {_A} among {', '.join([*named][:8]) or 'none'}"
        )
    pairs = {m: (named[m + _A], named[m + _B]) for m in modules if m + _B in named}
    ranks = {a.shape[0] for a, _ in pairs.values()}
    if len(pairs) < len(modules) or len(ranks) != 1:
        raise ConfigError(
            f"{folder}: adapters of {len(modules)} modules, {len(pairs)} of them with "
            f"{_B}, of the ranks {sorted(ranks)}; peft's config has one"
        )
    lengths = [m for m in modules if m + _MAGNITUDE in named]
    if lengths and lengths != modules:
        raise ConfigError(
            f"{folder}: {len(lengths)} of {len(modules)} modules have {_MAGNITUDE}; "
            "peft's config says of all of them whether they have one"
        )
    config = {
        "peft_type": "LORA",
        "task_type": task,
        "base_model_name_or_path": base,
        "r": ranks.pop(),
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "use_dora": bool(lengths),
        "target_modules": modules,
        "inference_mode": True,
    }
    ends = (_A, _B, _MAGNITUDE) if lengths else (_A, _B)
    arrays = {f"{PREFIX}{m}{end}": named[m + end] for m in modules for end in ends}
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    (path / WEIGHTS).write_bytes(to_bytes(arrays))
    (path / CONFIG).write_text(strict_json.dumps(config, indent=2) + "\n")
