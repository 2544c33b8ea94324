"""One bundle for each kind of hardware, made once, when the first such worker comes.

`compile_for(target)` gives the bytes of a bundle; it is a parameter, since this room
imports no compiler. The first bundle also decides the shape of the data: batch and
block are the model's. All bundles must have the same parameters and functions. For
islands of unlike shape a target is one with a mesh, `cpu tp=2`, and the bundles of all
shapes are made when the first is wanted.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pcp import strict_json
from pcp.bundle import Bundle, sha256
from pcp.errors import BundleError, ConfigError, PcpError, StateMismatch
from pcp.manifest import Manifest
from pcp.runtime.transport.signatures import Signer
from pcp.signing import BUNDLE
from pcp.training.config.experiment import SECRETS, Experiment
from pcp.training.config.island_options import axes_of
from pcp.training.coordinator.events import Program
from pcp.training.data.corpus import Corpus
from pcp.training.observe.metrics import Observer
from pcp.training.storage import first_values, safetensors_io
from pcp.training.storage.island_parts import IslandParts
from pcp.training.storage.island_shapes import IslandShape, IslandShapes
from pcp.training.storage.run_folder import RunFolder
from pcp.training.storage.state_names import as_masters, as_taken, like, unlike
from pcp.training.trainer.bundle_checks import check_bundle, data_inputs, model_shapes
from pcp.training.trainer.step_loop import MODEL_STATE, brought
from pcp.training.wire.message import DataInput
from pcp.training.wire.messages import Expects

CompileFor = Callable[[str], bytes]
_OWN = "cpu"
"""The target of a machine's own processor, for which every compiler has code."""


def keeping(
    compile_for: CompileFor, folder: RunFolder, observer: Observer
) -> CompileFor:
    """`compile_for`, which also keeps each bundle in the run's folder for readers."""

    def compiled(target: str) -> bytes:
        content = compile_for(target)
        try:
            folder.keep_program(target, content)
        except OSError as error:
            observer.log(f"{folder.programs}: {error.strerror}")
        return content

    return compiled


@dataclass(frozen=True)
class Artifact:
    """A compiled bundle, as it is sent."""

    content: bytes
    digest: str
    manifest: Manifest


class Artifacts:
    """The bundles of a run. Thread-safe; `get` blocks while it compiles."""

    def __init__(
        self,
        compile_for: CompileFor,
        experiment: Experiment,
        recorded: str | None = None,
        signer: Signer | None = None,
    ) -> None:
        """`recorded` is the digest that the run's ledger has of the data.

        Bundles are sent with the signature of `signer`, if there is one.
        """
        self._signer = signer
        self._compile_for, self._experiment = compile_for, experiment
        self._recorded = recorded
        self._made: dict[str, Artifact] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()
        self._corpus: Corpus | None = None
        self._shapes: IslandShapes | None = None
        self._compiling = threading.Lock()
        self.sound = True
        """Whether a bundle could be made for this machine's processor."""
        self.brought: str | None = None
        """A digest of the values that come with the model; None: there are none."""

    @property
    def made(self) -> bool:
        """Whether a bundle has been made."""
        return self._corpus is not None

    @property
    def corpus(self) -> Corpus:
        """The data, whose shape is the first bundle's."""
        if self._corpus is None:
            raise StateMismatch("no program was made yet, so no data was opened")
        return self._corpus

    @property
    def manifest(self) -> Manifest:
        """The manifest of the first bundle; all bundles have the same functions."""
        if not self._made:
            raise StateMismatch("no program was made yet")
        return next(iter(self._made.values())).manifest

    @property
    def parts(self) -> IslandParts | IslandShapes:
        """How the ranks of an island cut the state, or those of unlike islands."""
        return self._shapes or IslandParts.of(self.manifest)

    @property
    def parameters(self) -> str:
        """A digest of what is trained (names, shapes, dtypes) and of what is frozen."""
        trained = self.manifest.parameters
        found: list[Any] = [[p.name, list(p.shape), p.dtype] for p in trained]
        if self.brought is not None:
            found.append(self.brought)
        return sha256(strict_json.dumps(found).encode())

    def keep(self, run: Path) -> None:
        """Keep the values that come with the model, if any, in a run's folder."""
        if self.brought is not None:
            made, wanted = self.manifest.parameters, brought(self.manifest.functions)
            first_values.keep(self._experiment, wanted, run, self.brought, made)

    def get(self, target: str) -> Artifact:
        """The bundle for `target`, compiled when it is first asked for."""
        if self._experiment.islands:
            name, _, mesh = target.partition(" ")
            target = f"{name} {mesh or self._experiment.shapes[0]}"
        with self._lock:
            turn = self._locks.setdefault(target, threading.Lock())
        with turn:
            if target not in self._made:
                self._made[target] = self._make(target)
            return self._made[target]

    def program_or_blame(self, target: str) -> Program:
        """As `program`; a failure of the first one is traced to model or target.

        A worker that asks for an unknown target must not end the run: the run ends only
        if there is no bundle for this machine's own processor either, which `sound`
        says.
        """
        try:
            return self.program(target)
        except Exception:
            if not self.made:
                self.sound = self._for_this_machine()
            raise

    def _for_this_machine(self) -> bool:
        if self._experiment.model_path.endswith(".pcp"):
            return Path(self._experiment.model_path).is_file()
        try:
            self.get(_OWN)
        except PcpError:
            return False
        return True

    def program(self, target: str) -> Program:
        """The facts of the bundle for `target`, and of the data, that a run needs."""
        artifact, corpus = self.get(target), self.corpus
        shapes = self._all_shapes(target) if self._experiment.islands else None
        return Program(
            shapes=() if shapes is None else shapes.noted,
            digest=artifact.digest,
            size=len(artifact.content),
            manifest=self.manifest,
            parameters=self.parameters,
            data=self._recorded_or_new(corpus),
            data_parts=corpus.parts,
            samples=corpus.samples,
            batch=corpus.batch,
        )

    def _all_shapes(self, target: str) -> IslandShapes:
        """The shapes of unlike islands, by the bundles of all of them for a target."""
        name = target.partition(" ")[0]
        meshes = self._experiment.shapes
        made = [self.get(f"{name} {mesh}").manifest for mesh in meshes]
        found = IslandShapes([IslandShape.of(manifest) for manifest in made])
        with self._lock:
            self._shapes = self._shapes or found
            if self._shapes.noted != found.noted:
                raise BundleError(
                    f"for {name} islands cut the state in other parts than the run's "
                    "other islands; compile all of them from one model"
                )
        return found

    def expects(self, corpus: Corpus) -> Expects:
        """The `Expects` of a corpus, before there is a program."""
        inputs = [
            DataInput(name=t.name, shape=list(t.shape), dtype=t.dtype)
            for t in corpus.source.inputs
        ]
        return Expects(
            experiment=self._experiment.model_dump(exclude=SECRETS),
            inputs=inputs,
            data=self._recorded_or_new(corpus),
            data_parts=corpus.parts,
        )

    def _recorded_or_new(self, corpus: Corpus) -> str:
        """The ledger's digest of the data, if it is of these: an older pcp's differ."""
        recorded = self._recorded
        return recorded if recorded and corpus.is_of(recorded) else corpus.digest

    def _make(self, target: str) -> Artifact:
        with self._compiling:  # one compilation at a time, however many workers wait
            content = self._compile_for(target)
        bundle = Bundle.from_bytes(content, source=f"bundle for {target}")
        manifest = bundle.manifest
        check_bundle(manifest)
        self._check_mesh(manifest, target)
        with self._lock:
            if self._made:
                first = next(iter(self._made.values())).manifest
                _check_same(first, manifest, target, bool(self._experiment.islands))
            else:
                self._check_dtype(manifest)
                _check_weights(self._experiment.initial_weights, manifest)
                wanted = brought(manifest.functions)
                self.brought = first_values.check(
                    self._experiment, wanted, manifest.parameters
                )
                self._corpus = self._open(manifest)
        digest = sha256(content)  # the signature is no part of the program
        if self._signer is not None:
            signature = self._signer.sign(BUNDLE, bundle.digest)
            content = bundle.signed(signature).to_bytes()
        return Artifact(content, digest, manifest)

    def _open(self, manifest: Manifest) -> Corpus:
        corpus = Corpus(self._experiment, data_inputs(manifest))
        corpus.check_vocabulary(model_shapes(manifest))
        if self._experiment.model_path.endswith(".pcp"):
            corpus.check_rows(manifest.rows)  # a model's data were, before compiling
        return corpus

    def _check_mesh(self, manifest: Manifest, target: str) -> None:
        """Check that the experiment and the model have the same mesh."""
        found, wanted = manifest.worker_mesh().axes, self._experiment.axes
        if self._experiment.islands:
            wanted = axes_of(target.partition(" ")[2])
        if found != wanted:
            said = ",".join(f"{axis}={size}" for axis, size in found.items()) or "null"
            raise ConfigError(
                f"mesh: the experiment says {self._experiment.mesh or 'null'}, and the "
                f"model is compiled for {said}; make them agree"
            )

    def _check_dtype(self, manifest: Manifest) -> None:
        found = sorted({p.model_dtype for p in manifest.parameters})
        if found != [self._experiment.dtype]:
            raise ConfigError(
                f"dtype: the experiment says {self._experiment.dtype!r}, the model's "
                f"parameters are {', '.join(found)}"
            )


def _check_weights(path: str | None, manifest: Manifest) -> None:
    """Refuse initial weights that lack a parameter, or have it in another shape.

    The weights have all of the program's state, or none: then it follows from the seed.
    """
    if not path:
        return
    arrays = as_masters(safetensors_io.read(path), manifest.parameters)
    ours = {p.name: like(p) for p in manifest.parameters}
    made = manifest.function("init").results
    states = [t for t in made if t.role == MODEL_STATE]
    if any(t.name in arrays for t in states):
        arrays = as_taken(arrays, states)
        ours |= {t.name: like(t) for t in states}
    first_values.check_names(path, ours, arrays)
    for name, found in unlike(ours, arrays):
        raise ConfigError(
            f"initial_weights: {name} is {found.dtype} {list(found.shape)} in {path}, "
            f"the model's is {ours[name].dtype} {list(ours[name].shape)}"
        )


def _check_same(first: Manifest, second: Manifest, target: str, unlike: bool) -> None:
    """`unlike`: functions may cut what they take and give in other parts."""
    said = [_whole(m) if unlike else m.functions for m in (first, second)]
    if first.parameters != second.parameters or said[0] != said[1]:
        raise BundleError(
            f"the bundle for {target} is of another program than the run's other "
            "bundles; compile all of them from one model"
        )


def _whole(manifest: Manifest) -> dict[str, Any]:
    """The tensors that functions take and give, however they lie on a mesh."""
    return {
        name: [
            [(t.role, t.name, t.shape, t.dtype) for t in side]
            for side in (function.inputs, function.results)
        ]
        for name, function in manifest.functions.items()
    }
