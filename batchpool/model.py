"""The interface of user models: a class with tensors, `load`, `infer` and `unload`, and perhaps
stages around `infer`: `features`, `load_preprocess`, `preprocess` and `unload_preprocess` before,
`predictions`, `load_postprocess`, `postprocess` and `unload_postprocess` after it."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from batchpool.core.errors import ConfigError
from batchpool.core.frameworks import FRAMEWORKS
from batchpool.core.scheduler.graph_shapes import checked_graph_sizes
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.core.tensors.stages import Stage, stage_spec

_KINDS = ("inputs", "outputs", "parameters")
_LISTS = (*_KINDS, "features", "predictions")


class Batch(Mapping[str, Any]):
    """The rows of one call: `batch["x"]` is an array [n, *row shape].

    The model must return n rows. The first `rows` of them are requested; the others, which only
    a model with `batch_sizes` gets, are padding made of `warm_up_row`, and their outputs are
    dropped.

    With framework "torch" numeric tensors are torch.Tensors on the worker's device, with
    "numpy" they are numpy arrays. A bytes tensor is a numpy object array of `bytes`. A
    declared parameter is an array [n]. `sizes["ids"]` is an int64 array [n, dynamic
    dimensions] with each row's own sizes; beyond them the row holds the declared pad.
    `failed` holds the errors of the rows that `fail` has named, by row.
    """

    __slots__ = ("_tensors", "failed", "n", "rows", "sizes")

    def __init__(
        self,
        n: int,
        tensors: dict[str, Any],
        sizes: dict[str, Any] | None = None,
        rows: int | None = None,
    ):
        self.n = n
        self.rows = n if rows is None else rows
        self.sizes = sizes or {}
        self.failed: dict[int, Exception] = {}
        self._tensors = tensors

    def fail(self, row: int, error: Exception) -> None:
        """End one row with an error; all other rows of the batch get their outputs.

        error: `bp.InvalidInput` where the caller is to send another input (HTTP status 400), any
        other exception where the model is at fault (500). The row still has its place in the
        outputs that `infer` returns; what stands there is dropped. IndexError for a row that the
        batch does not have; TypeError where `error` is no exception.
        """
        at = operator.index(row)
        if not 0 <= at < self.n:
            raise IndexError(f"batch.fail: row {at}; the batch has the rows 0 to {self.n - 1}")
        if not isinstance(error, Exception):
            raise TypeError(f"batch.fail: {error!r} is no exception; bp.InvalidInput was expected")
        self.failed[at] = error

    def __getitem__(self, name: str) -> Any:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


class Model:
    """The parent class of models: a subclass declares its tensors and defines `infer`.

    Each worker has one instance. What follows stands in the class body, or `__init__` sets it. The
    arguments of `__init__` are the model's options (`[model.options]`, `--option KEY=VALUE`),
    checked against its annotations. A short process that serves nothing makes an instance too, to
    read its tensors, and a worker makes its instance before `load`: so `__init__` may read what
    tells the tensors, as the head of a file, but touches no device and loads no weights.

    name        the name by which callers address it; default: the class name in lower case. In an
                instance, within `__init__` too, the name by which the pool serves it
    framework   "torch" (default) or "numpy"; a numpy model's worker never imports torch
    inputs, outputs, parameters   lists of `bp.Tensor`, shapes without the row dimension. A method
                of such a name from another parent class (torch.nn.Module has one) stays what
                an instance calls
    features    what `preprocess` makes and `infer` reads instead of the inputs: a list of
                `bp.Tensor`, and the names of inputs that `infer` reads too. Empty (default) for a
                model without `preprocess`; an `__init__` that sets it to [] goes without the stage
    predictions  what `infer` makes, and `postprocess` makes the outputs of: a list of `bp.Tensor`,
                 and the names of inputs and features that `postprocess` reads too. Empty (default)
                 for a model without `postprocess`, as an `__init__` may set it too
    writable    numpy only: True gives `infer` a copy that it may change; False (default) a
                read-only view of shared memory wherever that is possible
    cuda_graphs torch only: True captures each batch size as a CUDA graph during the warm-up and
                replays it from then on, which saves the time of launching every kernel. Only for
                an `infer` that runs the same kernels on its tensors in every call: it must not
                read values, count calls or branch. The rows beyond the requested ones hold rows
                of earlier batches then. Without effect on a CPU
    graph_sizes  with `cuda_graphs`: the sizes of a named dynamic dimension that are captured,
                {name: [16, 64, 256]}, the last of them its maximum. A batch is padded to the next
                larger one of its longest row. Default: powers of two from 16. `batch.sizes` holds
                tensors of the device then; torch.as_tensor(batch.sizes["ids"], device=...) serves
                a CPU too
    """

    generates: ClassVar[bool] = False  # True: of a bp.Generator
    name: str = ""
    framework: str = "torch"
    _declared: ClassVar[dict[str, Sequence[Tensor | str]]] = {}  # lists whose names a method has
    inputs: Sequence[Tensor] = ()
    outputs: Sequence[Tensor] = ()
    parameters: Sequence[Tensor] = ()
    # Without a value here: a torch.nn.Module with a submodule of this name keeps it.
    features: Sequence[Tensor | str]
    predictions: Sequence[Tensor | str]
    writable: bool = False
    cuda_graphs: bool = False
    graph_sizes: Mapping[str, Sequence[int]] = {}

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Keep the declared lists where another parent class has a method of such a name.

        torch.nn.Module has `parameters`: `self.parameters()` calls it in a subclass of both
        classes, in whichever order they stand.
        """
        super().__init_subclass__(**arguments)
        cls._declared = {}
        for kind in _LISTS:
            methods = (vars(each).get(kind) for each in cls.__mro__)
            method = next((each for each in methods if hasattr(each, "__get__")), None)
            if method is None:
                continue
            if kind in vars(cls) and not hasattr(vars(cls)[kind], "__get__"):
                cls._declared[kind] = vars(cls)[kind]
            setattr(cls, kind, method)

    def load_preprocess(self) -> None:
        """Load what `preprocess` needs, as a tokenizer; called once in each process that runs
        `preprocess`, for an instance for which `load` is never called. Optional."""

    def preprocess(self, batch: Batch) -> Mapping[str, Any]:
        """Make the features of n rows: {feature name: array [n, *row shape]} in row order.

        Runs on the CPU: in processes of its own, or in the worker before `infer` where that runs on
        the CPU too. `self` is another instance than the one that `load` was called for. The tensors
        of the batch are the inputs and parameters as numpy arrays, whatever the framework. A
        feature may be a list of n rows, as an output of `infer`. A `bp.InvalidInput` in a row's
        place, passed to `batch.fail`, or raised for a batch of one row, tells the caller what is
        wrong with the input (HTTP status 400), and the row goes no further; a plain ValueError in a
        row's place does so too. Any other exception there is the model's fault (500). An exception
        that is raised fails the batch, as in `infer`, a ValueError too.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define preprocess")

    def load(self, device: str) -> None:
        """Load the model; called once in each worker before `infer`. device: "cuda:0" or "cpu"."""

    def infer(self, batch: Batch) -> Mapping[str, Any]:
        """Run n rows and return {output name: array [n, *row shape]} in row order.

        An output may be a list of n rows, each an array or (nested lists of) numbers; with
        dynamic dimensions each may have its own size.
        An exception in a row's place, or passed to `batch.fail`, fails that row alone:
        `bp.InvalidInput` tells its caller what is wrong with the input. An exception that is
        raised fails the batch, whose rows then run again in parts until the guilty row is alone.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define infer")

    def load_postprocess(self) -> None:
        """Load what `postprocess` needs, as a list of labels; called once in each postprocessing
        worker, which sees no GPU and never calls `load`. Optional."""

    def postprocess(self, batch: Batch) -> Mapping[str, Any]:
        """Make the outputs of n rows: {output name: array [n, *row shape]} in row order.

        Runs in processes of its own on the CPU, as `preprocess`. The tensors of the batch are the
        predictions, the parameters, and the inputs and features that stand among the predictions,
        as numpy arrays, whatever the framework. Errors are as in `infer`: an exception in a row's
        place, or passed to `batch.fail`, fails that row alone, a `bp.InvalidInput` as the caller's
        fault (HTTP status 400), any other one as the model's (500).
        """
        raise NotImplementedError(f"{type(self).__name__} does not define postprocess")

    def unload(self) -> None:
        """Put away what `load` made: close files and connections, stop threads. Optional.

        Called once in each worker that ends on purpose, when its last batch is answered: the pool
        stops, a reload has replaced the worker or removed its model, or the warm-up failed after a
        good `load`. Python ends normally afterwards: functions of atexit run and files are
        flushed. All of it gets unload_timeout_s, then the worker is killed. An exception is logged
        and changes nothing. Not called where a worker is lost: killed, stuck in a batch, or with a
        broken device.
        """

    def unload_preprocess(self) -> None:
        """Put away what `load_preprocess` made, as `unload` does for `load`. Optional."""

    def unload_postprocess(self) -> None:
        """Put away what `load_postprocess` made; `unload` of a postprocessing worker. Optional."""

    @classmethod
    def _generator_spec(
        cls,
        model: type[Model] | Model,
        name: str,
        lists: tuple[tuple[Tensor, ...], ...],
        between: tuple[Tensor, ...],
    ) -> ModelSpec:
        """The declaration of a `bp.Generator`, which overrides this."""
        raise NotImplementedError

    def warm_up_row(self) -> Mapping[str, Any]:
        """One row, {input name: value of the row's shape}, for the warm-up calls.

        With `preprocess` it may name features too, and with `postprocess` predictions, since each
        stage is warmed up with tensors that the one before it has not made.

        With `batch_sizes` it also pads batches, its dynamic dimensions cut to the batch's
        largest. Default: the pad value at full size for numbers, b"warm up" for bytes.
        """
        return {}


def make_instance(cls: type[Model], name: str, options: Mapping[str, Any]) -> Model:
    """An instance of a model class, which knows the name by which it is served.

    name: "" for the one that the class says. options: arguments of `__init__`.
    """
    model = cls.__new__(cls)
    # Not by setattr: that of torch.nn.Module may work only after its own __init__.
    vars(model)["name"] = name or cls.name or cls.__name__.lower()
    model.__init__(**options)  # type: ignore[misc]
    for kind in _LISTS:
        # A list that __init__ has set hides the method of another parent class: it moves beside it.
        if kind in vars(model) and callable(getattr(cls, kind, None)):
            declared = vars(model).setdefault("_declared", {})
            declared[kind] = vars(model).pop(kind)
    return model


def spec_of(model: type[Model] | Model) -> ModelSpec:
    """The checked declaration of a model, by its class alone or by an instance, whose `__init__`
    may have set what it declares; ConfigError says what is wrong with it."""
    cls = model if isinstance(model, type) else type(model)
    if not issubclass(cls, Model):
        raise ConfigError(f"{model!r} is not a subclass of batchpool.Model")
    name = model.name or cls.__name__.lower()
    features, kept_inputs = _between(model, name, "features", "names of inputs")
    predictions, kept = _between(model, name, "predictions", "names of inputs and features")
    lists = (_listed(model, name, kind, "bp.Tensor", Tensor) for kind in _KINDS)
    inputs, outputs, parameters = lists
    if cls.generates:
        return cls._generator_spec(
            model, name, (inputs, outputs, parameters), features + predictions
        )
    spec = ModelSpec(
        name, model.framework, inputs, outputs, parameters, features, kept_inputs, predictions, kept
    )
    if model.cuda_graphs:
        _check_graphs(stage_spec(spec, Stage.INFER), model)
    if cls.infer is Model.infer:
        raise ConfigError(f"model class {cls.__name__} does not define infer(self, batch)")
    _check_stage(model, "preprocess", "features", spec.features, "preprocess makes and infer reads")
    _check_stage(
        model, "postprocess", "predictions", spec.predictions, "infer makes and postprocess reads"
    )
    return spec


def _check_stage(
    model: type[Model] | Model, method: str, kind: str, tensors: Sequence[Tensor], what: str
) -> None:
    """ConfigError where a model has the tensors of a stage and not its method, or the reverse. An
    instance that has set them to nothing goes without the stage that its class defines.

    what: the tensors are.
    """
    cls = model if isinstance(model, type) else type(model)
    methods = (method, f"load_{method}", f"unload_{method}")
    defined = [name for name in methods if getattr(cls, name) is not getattr(Model, name)]
    if tensors and method not in defined:
        raise ConfigError(
            f"model class {cls.__name__} has {kind} and does not define {method}(self, batch);"
            f" {kind} are what {what}"
        )
    set_to_nothing = not isinstance(model, type) and kind in vars(model)
    if defined and not tensors and not set_to_nothing:
        raise ConfigError(
            f"model class {cls.__name__} defines {defined[0]} and has no {kind}: expected"
            f" {kind} = [bp.Tensor(...), ...], what {what}"
        )


def _between(
    model: type[Model] | Model, name: str, kind: str, names: str
) -> tuple[tuple[Tensor, ...], tuple[str, ...]]:
    """The tensors of the list `kind`, and the names in it."""
    declared = _listed(model, name, kind, f"bp.Tensor or {names}", (Tensor, str))
    tensors = tuple(each for each in declared if not isinstance(each, str))
    return tensors, tuple(each for each in declared if isinstance(each, str))


def _listed(
    model: type[Model] | Model,
    name: str,
    kind: str,
    what: str,
    types: type | tuple[type, ...],
) -> tuple[Any, ...]:
    """The list `kind` that an instance has set, else of the nearest class that declares one."""
    found: Any = _of_class(model, kind) if isinstance(model, type) else _of_instance(model, kind)
    if not isinstance(found, (list, tuple)):
        raise ConfigError(f"model {name!r}: {kind} must be a list of {what}, not {found!r}")
    for element in found:
        if not isinstance(element, types):
            raise ConfigError(f"model {name!r}: {kind} must be {what}, not {element!r}")
    return tuple(found)


def _of_class(cls: type[Model], kind: str) -> Any:
    for each in cls.__mro__:
        own = vars(each).get(kind)
        if own is None or hasattr(own, "__get__"):
            own = vars(each).get("_declared", {}).get(kind)
        if own is not None:
            return own
    return ()


def _of_instance(model: Model, kind: str) -> Any:
    if kind in vars(model).get("_declared", ()):
        return vars(model)["_declared"][kind]
    found = getattr(model, kind, ())
    return _of_class(type(model), kind) if callable(found) else found


def _check_graphs(spec: ModelSpec, model: type[Model] | Model) -> None:
    wants = f"model {spec.name!r} has cuda_graphs = True, which needs"
    if not FRAMEWORKS[spec.framework].cuda_graphs:
        able = " or ".join(f'"{name}"' for name, known in FRAMEWORKS.items() if known.cuda_graphs)
        raise ConfigError(f"{wants} framework {able}, not {spec.framework!r}")
    for tensor in (*spec.inputs, *spec.outputs, *spec.parameters):
        if tensor.is_bytes:
            raise ConfigError(f"{wants} numbers; {tensor.name!r} is a bytes tensor")
    named = {dim.name for t in spec.inputs for dim in t.shape if isinstance(dim, Dim)} - {""}
    for tensor in spec.outputs:
        if any(isinstance(dim, Dim) and dim.name not in named for dim in tensor.shape):
            raise ConfigError(
                f"{wants} outputs of fixed shapes, or of dimensions that have the name of an"
                f" input's; {tensor.name!r} is {list(tensor.shape)}"
            )
    checked_graph_sizes(spec, model.graph_sizes)
