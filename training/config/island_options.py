"""The options of islands of unlike shape: an experiment's key `islands`."""

from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict, Field

MESH = r"^[a-z]+=[1-9]\d*(,[a-z]+=[1-9]\d*)*$"


class IslandOptions(BaseModel):
    """Every key of an entry of `islands`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mesh: str = Field(
        pattern=MESH, description="tp=2: the island's devices, as the experiment's mesh"
    )


def check_unlike(
    meshes: Sequence[str],
    count: int,
    model_path: str,
    said: Mapping[str, str | None],
) -> None:
    """`ValueError` where islands of these meshes cannot train one model.

    There are `count` islands; `meshes` has each mesh once. What is `said` besides says
    another mesh.
    """
    for key, given in said.items():
        if given is not None:
            raise ValueError(
                f"islands say the mesh of each, and {key} says {given}; say one"
            )
    if len(meshes) == 1:
        raise ValueError(
            f'islands are all alike: say mesh "{meshes[0]}" and workers {count}'
        )
    if staged := [mesh for mesh in meshes if "pp" in axes_of(mesh)]:
        raise ValueError(
            "islands of unlike shape exchange parts of all tensors, and a stage of "
            f"{staged[0]} has few of them; leave pp out, or take one mesh for all"
        )
    if model_path.endswith(".pcp"):
        raise ValueError(
            f"islands of unlike shape have a program each, and {model_path} is one; "
            "name the model"
        )


def axes_of(mesh: str) -> dict[str, int]:
    """The axes of a mesh that is written as `tp=2,dp=2`."""
    pairs = [axis.split("=") for axis in mesh.split(",") if axis]
    return {axis: int(size) for axis, size in pairs}
