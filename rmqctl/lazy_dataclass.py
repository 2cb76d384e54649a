"""Dataclasses whose ``__init__`` is generated when the first instance is created.

`dataclasses.dataclass` compiles up to six functions for each class. This takes 0.5 to 1 ms for each
class on Python 3.11, and a fifth of the CPU time of a short run, which creates instances of few
classes. The decorator here compiles ``__init__`` alone, and only for classes with instances. Fields
are those of `dataclasses`, so ``field``, ``fields``, ``replace`` and ``asdict`` work with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["dataclass"]

if TYPE_CHECKING:  # type checkers know the standard decorator
    from dataclasses import dataclass
else:
    import dataclasses
    import reprlib
    from collections.abc import Callable
    from operator import attrgetter
    from types import MemberDescriptorType
    from typing import Any

    _MISSING = dataclasses.MISSING

    _OPTIONS = {"repr": True, "eq": True, "frozen": False, "slots": False, "kw_only": False}
    """The options of `dataclasses.dataclass` that rmqctl uses, and their defaults."""

    def dataclass(cls: type | None = None, /, **options: bool) -> Any:
        """Do what `dataclasses.dataclass` does, with an ``__init__`` that is generated later."""
        if not _OPTIONS.keys() >= options.keys():
            raise TypeError(f"unexpected options of a dataclass: {', '.join(options)}")
        chosen = _OPTIONS | options
        return _decorated(cls, **chosen) if cls else lambda cls: _decorated(cls, **chosen)

    def _decorated(cls: type, **options: bool) -> type:
        """Return the class with fields, slots and methods; its own methods stay."""
        frozen, slots = options["frozen"], options["slots"]
        own = {name for name in ("__init__", "__repr__", "__eq__") if name in vars(cls)}
        hashed = vars(cls).get("__hash__") is not None
        if frozen and not {"__setattr__", "__delattr__"}.isdisjoint(vars(cls)):
            raise TypeError(f"{cls.__name__} is frozen and has a method that sets attributes")
        cls = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots,
                                    kw_only=options["kw_only"])(cls)
        methods: dict[str, Callable[..., Any]] = {}
        fields = dataclasses.fields(cls)
        if "__init__" not in own:
            methods["__init__"] = _first_init(cls, frozen)
        if options["repr"] and "__repr__" not in own:
            methods["__repr__"] = _repr([field.name for field in fields if field.repr])
        if options["eq"]:
            methods |= _comparing(fields, frozen, hashed, "__eq__" in own)
            if not frozen and not hashed:
                cls.__hash__ = None
        if frozen:
            methods |= _refusing(cls, frozenset(field.name for field in fields))
            if slots:
                methods |= _pickling([field.name for field in fields])
        for name, method in methods.items():
            method.__name__, method.__qualname__ = name, f"{cls.__qualname__}.{name}"
            setattr(cls, name, method)
        return cls

    def _first_init(cls: type, frozen: bool) -> Callable[..., None]:
        """Return an ``__init__`` that generates the right one, which takes its place."""

        def first(self: Any, *args: Any, **kwargs: Any) -> None:
            cls.__init__ = _generated(cls, frozen)
            cls.__init__(self, *args, **kwargs)

        return first

    def _generated(cls: type, frozen: bool) -> Callable[..., None]:
        """Compile the ``__init__`` of a dataclass from its fields."""
        names: dict[str, Any] = {"_set": object.__setattr__, "_FACTORY": _MISSING}
        positional, keywords, body = [], [], []
        for field in dataclasses.fields(cls):
            name, value = field.name, field.name
            parameter = name
            # A default is a parameter's default; a factory is called where no argument is passed.
            if field.default is not _MISSING:
                names[f"_default_{name}"] = field.default
                parameter = f"{name}=_default_{name}"
                value = name if field.init else f"_default_{name}"
            elif field.default_factory is not _MISSING:
                names[f"_new_{name}"] = field.default_factory
                parameter = f"{name}=_FACTORY"
                value = (f"_new_{name}() if {name} is _FACTORY else {name}" if field.init
                         else f"_new_{name}()")
            elif not field.init:
                continue
            if field.init:
                (keywords if field.kw_only else positional).append(parameter)
            # Of a frozen class, a slot's own method is three times as fast as `object.__setattr__`.
            if not frozen:
                body.append(f"self.{name} = {value}")
            elif isinstance(slot := getattr(cls, name, None), MemberDescriptorType):
                names[f"_set_{name}"] = slot.__set__
                body.append(f"_set_{name}(self, {value})")
            else:
                body.append(f"_set(self, {name!r}, {value})")
        if hasattr(cls, "__post_init__"):
            body.append("self.__post_init__()")
        parameters = ["self", *positional, *(["*", *keywords] if keywords else [])]
        exec(f"def __init__({', '.join(parameters)}):\n " + "\n ".join(body or ["pass"]), names)
        names["__init__"].__qualname__ = f"{cls.__qualname__}.__init__"
        return names["__init__"]

    def _repr(shown: list[str]) -> Callable[[Any], str]:
        """Return a ``__repr__`` of the fields with these names."""

        @reprlib.recursive_repr()
        def shown_as(self: Any) -> str:
            values = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
            return f"{self.__class__.__qualname__}({values})"

        return shown_as

    def _comparing(fields: tuple[dataclasses.Field, ...], frozen: bool, hashed: bool,
                   compared: bool) -> dict[str, Callable[..., Any]]:
        """Return ``__eq__`` unless the class has its own, and ``__hash__`` if it is frozen."""
        values = _values([field.name for field in fields if field.compare])
        key = _values([field.name for field in fields
                       if (field.compare if field.hash is None else field.hash)])

        def equal(self: Any, other: object) -> bool:
            if other.__class__ is not self.__class__:
                return NotImplemented
            return values(self) == values(other)

        methods: dict[str, Callable[..., Any]] = {} if compared else {"__eq__": equal}
        if frozen and not hashed:
            methods["__hash__"] = lambda self: hash(key(self))
        return methods

    def _values(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
        """Return a function that returns the attributes with these names as a tuple."""
        if len(names) > 1:
            return attrgetter(*names)
        return lambda self: tuple(getattr(self, name) for name in names)

    def _refusing(cls: type, fields: frozenset[str]) -> dict[str, Callable[..., None]]:
        """Return the ``__setattr__`` and the ``__delattr__`` of a frozen class."""

        def set_attribute(self: Any, name: str, value: Any) -> None:
            if type(self) is cls or name in fields:
                raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
            super(cls, self).__setattr__(name, value)

        def delete_attribute(self: Any, name: str) -> None:
            if type(self) is cls or name in fields:
                raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
            super(cls, self).__delattr__(name)

        return {"__setattr__": set_attribute, "__delattr__": delete_attribute}

    def _pickling(names: list[str]) -> dict[str, Callable[..., Any]]:
        """Return what pickles instances with slots, whose attributes cannot be set."""

        def state_of(self: Any) -> list[Any]:
            return [getattr(self, name) for name in names]

        def restore(self: Any, state: list[Any]) -> None:
            for name, value in zip(names, state, strict=True):
                object.__setattr__(self, name, value)

        return {"__getstate__": state_of, "__setstate__": restore}
