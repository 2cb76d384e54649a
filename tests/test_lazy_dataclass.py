"""`rmqctl.lazy_dataclass` against `dataclasses.dataclass`: same fields, methods and errors."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from threading import Barrier, Thread

import pytest

from rmqctl.lazy_dataclass import dataclass


def both(name, bases=(), options=None, **space):
    """The class decorated by `dataclasses` and by rmqctl; lists hold arguments of `field`."""
    classes = []
    for which, decorator in enumerate((dataclasses.dataclass, dataclass)):
        body = {key: dataclasses.field(**value[0]) if isinstance(value, list) and value else value
                for key, value in space.items()}
        parents = tuple(pair[which] for pair in bases)
        kind = type(name, parents, {"__module__": __name__, "__doc__": "A class.",
                                    "__qualname__": name, **body})
        classes.append(decorator(**(options or {}))(kind))
    return classes


def outcome(call):
    """What a call returns or raises, in words."""
    try:
        return repr(call())
    except Exception as problem:  # noqa: BLE001
        return f"{type(problem).__name__}: {problem}"


ANNOTATED = {"__annotations__": {"x": "int", "y": "str", "z": "list"}, "y": "why",
             "z": [{"default_factory": list, "compare": False}]}
OPTIONS = [{}, {"frozen": True}, {"slots": True}, {"frozen": True, "slots": True},
           {"eq": False}, {"frozen": True, "eq": False, "repr": False}, {"kw_only": True},
           {"slots": True, "kw_only": True}]
ARGUMENTS = [((1,), {}), ((1, "b"), {}), ((1, "b", [3]), {}), ((), {"x": 2}), ((), {}),
             ((1, 2, 3, 4), {}), ((1,), {"other": 2}), ((), {"x": 1, "z": [1]})]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_classes_behave_like_standard_dataclasses(options):
    standard, ours = both("Point", options=options, **ANNOTATED)
    for arguments, named in ARGUMENTS:
        def new(kind, arguments=arguments, named=named):
            return kind(*arguments, **named)

        expected = outcome(lambda new=new: dataclasses.astuple(new(standard)))
        assert outcome(lambda new=new: dataclasses.astuple(new(ours))) == expected
    first, second = ours(x=1), ours(x=1)
    assert (first == second) is (standard(x=1) == standard(x=1))
    assert first != ours(x=2)
    assert first != standard(x=1)
    assert first.z is not second.z
    if options.get("repr", True):
        assert repr(first) == repr(standard(x=1))
    expected = outcome(lambda: hash(standard(x=1)) == hash(standard(x=1)))
    assert outcome(lambda: hash(ours(x=1)) == hash(ours(x=1))) == expected
    for change in (lambda point: setattr(point, "x", 3), lambda point: delattr(point, "x")):
        assert outcome(lambda change=change: change(first)).split(":")[0] == outcome(
            lambda change=change: change(standard(x=1))).split(":")[0]
    assert ours.__match_args__ == standard.__match_args__
    assert hasattr(ours(x=1), "__dict__") == hasattr(standard(x=1), "__dict__")
    assert dataclasses.replace(ours(x=1), y="b").y == "b"
    assert copy.copy(ours(x=5)).x == 5


def test_fields_of_parents_and_own_methods():
    parent = both("Parent", options={"frozen": True}, __annotations__={"a": "int", "b": "int"}, b=2)
    standard, ours = both("Child", [parent], {"frozen": True},
                          __annotations__={"c": "int", "d": "int"},
                          c=[{"default": 3, "kw_only": True, "repr": False}],
                          d=[{"default": 4, "init": False, "hash": False}])
    for arguments, named in [((1,), {}), ((1, 5), {"c": 6}), ((1, 5, 6), {}), ((), {"c": 1})]:
        assert (outcome(lambda kind=ours, a=arguments, n=named: kind(*a, **n))
                == outcome(lambda kind=standard, a=arguments, n=named: kind(*a, **n)))
    assert hash(ours(1)) == hash(standard(1)) == hash((1, 2, 3))
    assert outcome(lambda: setattr(ours(1), "a", 2)) == outcome(
        lambda: setattr(standard(1), "a", 2))

    own = {"__annotations__": {"a": "int"}, "__repr__": lambda self: "mine",
           "__eq__": lambda self, other: self.a == other, "__hash__": lambda self: 7,
           "__post_init__": lambda self: self.log.append(self.a), "log": []}
    for kind in both("Own", **own):
        assert (repr(kind(3)), kind(3) == 3, hash(kind(3))) == ("mine", True, 7)
        assert kind.log.pop() == 3
    for kind in both("Init", __annotations__={"a": "int"},
                     __init__=lambda self: setattr(self, "a", 9)):
        assert kind().a == 9
    for kind in both("Equal", __annotations__={"a": "int"}, __eq__=lambda self, other: True):
        assert (kind.__hash__, kind(1) == kind(2)) == (None, True)


@dataclass(frozen=True, slots=True)
class Place:
    """A class that can be pickled by its name."""

    file: str
    offset: int = 0


def test_a_frozen_class_with_slots_is_pickled():
    assert pickle.loads(pickle.dumps(Place("log", 4))) == Place("log", 4)


def test_init_is_generated_by_the_first_instance_alone():
    kind = dataclass(type("Late", (), {"__annotations__": {"a": "int"}, "__doc__": "A class."}))
    before = kind.__init__
    assert kind(1).a == 1
    after = kind.__init__
    assert after is not before
    assert kind(a=2).a == 2
    assert kind.__init__ is after


def test_threads_create_the_first_instances_together():
    kind = dataclass(frozen=True)(type("Shared", (), {"__annotations__": {"a": "int"},
                                                      "__doc__": "A class."}))
    barrier, seen = Barrier(8), []

    def create(value):
        barrier.wait()
        seen.append(kind(value).a)

    threads = [Thread(target=create, args=(value,)) for value in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(8))


def test_unknown_options_and_wrong_classes_are_refused():
    with pytest.raises(TypeError, match="order"):
        dataclass(order=True)
    with pytest.raises(TypeError, match="frozen"):
        dataclass(frozen=True)(type("Wrong", (), {"__annotations__": {"a": "int"},
                                                  "__setattr__": object.__setattr__}))
    with pytest.raises(ValueError, match="mutable default"):
        dataclass(type("Wrong", (), {"__annotations__": {"a": "list"}, "a": []}))
