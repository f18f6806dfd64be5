"""The models of a server: which functions they are, and their metadata.

A model is described once, when the server starts or when its function is added to a running one.
Until then its result may refer to names that the program defines later.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ucall import _core
from ucall._functions.results import annotation_of
from ucall._inference.tensors import NotATensor, input_of, outputs_of
from ucall.schema.description import describe_by_name, is_passed_by_name
from ucall.schema.types import Schema, Schemas
from ucall.types.aliases import resolve_alias

if TYPE_CHECKING:
    from ucall._functions.methods import Methods, Served

__all__ = ["Models"]

#: A model, as the core takes it.
Model = tuple[str, list[tuple[str, str]], list[tuple[str, str | None]], bool, str, str]

#: The only version of each model.
_VERSION = "1"
_PLATFORM = "ucall"


class Models:
    """The models of a server.

    Args:
        core: The server.
        methods: Its functions.
        title: The name of the program.
        version: Of the program.
    """

    def __init__(self, core: _core.Server, methods: Methods, title: str, version: str) -> None:
        self._core = core
        self._methods = methods
        extensions = ["binary_tensor_data", "model_configuration"]
        self._server = json.dumps({"name": title, "version": version, "extensions": extensions})
        #: The names of the functions that must be models; ``None`` for all that can be.
        self._named: set[str] | None = set()
        self._known: dict[str, tuple[Served, Model | NotATensor]] = {}

    def choose(self, names: Iterable[str] | None) -> None:
        """Adds functions by their names, or all that can be models with ``None``."""
        before = self._named
        if names is None:
            self._named = None
        elif self._named is not None:
            self._named = self._named | set(names)
        try:
            self.change()
        except BaseException:
            self._named = before
            raise

    def change(self) -> None:
        """Serves the functions that there are now, if the server runs; else its start does."""
        if self._core.is_running:
            self.publish()

    def publish(self) -> None:
        """Describes the functions that there are now.

        Raises:
            TypeError: A function that was named cannot be a model.
            ValueError: There is no function of a name.
        """
        served, models = self._methods.served, []
        for name in sorted((self._named or set()) - served.keys()):
            raise ValueError(f"inference: there is no function {name!r}")
        for name, it in served.items():
            if self._named is not None and name not in self._named:
                continue
            model = self._model(name, it)
            if not isinstance(model, NotATensor):
                models.append(model)
            elif self._named is not None:
                raise TypeError(f"{name}: cannot be a model: {model}")
        _core.set_models(self._core, self._server, models)

    def _model(self, name: str, served: Served) -> Model | NotATensor:
        known = self._known.get(name)
        if known is not None and known[0] is served:
            return known[1]
        try:
            model: Model | NotATensor = self._described(name, served)
        except NotATensor as reason:
            model = reason
            import logging  # here, because importing it takes a fifth as long as all of ucall

            logging.getLogger("ucall").debug("inference: %s is no model: %s", name, reason)
        self._known[name] = served, model
        return model

    def _described(self, name: str, served: Served) -> Model:
        if not is_passed_by_name(served):
            raise NotATensor("it takes params by position alone")
        schemas = Schemas(self._methods.types)
        method = describe_by_name(name, served, schemas)
        inputs = {}
        for param in method.params or ():
            try:
                inputs[param.name] = input_of(param.schema, schemas.components)
            except NotATensor as reason:
                if param.is_required:
                    raise NotATensor(f"its param {param.name!r} {reason}") from None
        try:
            result = _tuple_schema(served, schemas) or method.result
            outputs, returns_items = outputs_of(result, schemas.components)
        except NotATensor as reason:
            raise NotATensor(f"its result {reason}") from None
        metadata: dict[str, Any] = {
            "name": name,
            "versions": [_VERSION],
            "platform": _PLATFORM,
            "inputs": [it.metadata(named) for named, it in inputs.items()],
            "outputs": [it.metadata(named) for named, it in outputs.items()],
        }
        config: dict[str, Any] = {
            "name": name,
            "platform": _PLATFORM,
            "max_batch_size": 0,
            "input": [it.config(named) for named, it in inputs.items()],
            "output": [it.config(named) for named, it in outputs.items()],
        }
        forms = [(named, it.form) for named, it in inputs.items()]
        results = [(named, it.number) for named, it in outputs.items()]
        return name, forms, results, returns_items, json.dumps(metadata), json.dumps(config)


def _tuple_schema(served: Served, schemas: Schemas) -> Schema | None:
    """The schema of a tuple that a function returns, with the dtypes of arrays in it; ``None`` for
    any other result."""
    annotation = resolve_alias(annotation_of(served.function, served.hints))
    items = typing.get_args(annotation)
    is_tuple = typing.get_origin(annotation) is tuple and Ellipsis not in items
    if not is_tuple or served.takes_batches:
        return None
    return {"prefixItems": [schemas.of(item, "result") for item in items]}
