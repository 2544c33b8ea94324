"""The mesh that a model is served over, as `--mesh` says it."""

from collections.abc import Mapping

from pcp.errors import UsageError

TP, PP = "tp", "pp"
"""Members that share each layer, and stages that have layers of their own."""


def parse(text: str) -> dict[str, int]:
    """Its axes, in the order in which ranks are counted along them."""
    from pcp.compiler.mesh_option import parse_mesh

    asked = parse_mesh(text)
    if asked.workers is not None:
        raise UsageError(f"--mesh {text}: a model is served without workers")
    sizes(asked.axes)
    return dict(asked.axes)


def sizes(mesh: Mapping[str, int]) -> tuple[int, int]:
    """Members that share a layer, and stages; `UsageError` for another axis."""
    if other := [axis for axis in mesh if axis not in (TP, PP)]:
        raise UsageError(
            f"mesh {other[0]}={mesh[other[0]]}: a model is served over {TP}=N, which "
            f"cuts its layers, and {PP}=N, which shares them out: {TP}=2,{PP}=2"
        )
    return mesh.get(TP, 1), mesh.get(PP, 1)
