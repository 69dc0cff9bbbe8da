"""Docstrings: every public thing has one, which names its arguments, what it returns and what it raises."""

import inspect

import pytest

import rowmill

CLASSES = [thing for thing in vars(rowmill).values() if inspect.isclass(thing)]
CALLS = [
    (f"{thing.__name__}.{name}", call)
    for thing in CLASSES
    if not issubclass(thing, Exception)
    for name, call in vars(thing).items()
    if not name.startswith("_") and callable(call)
] + [(name, getattr(rowmill, name)) for name in ["connect", "Feature", "Jagged"]]


def test_all_is_what_is_there():
    assert sorted(rowmill.__all__) == rowmill.__all__
    public = {name for name, thing in vars(rowmill).items() if not name.startswith("_") and not inspect.ismodule(thing)}
    assert public | {"__version__"} == set(rowmill.__all__)


@pytest.mark.parametrize("thing", CLASSES, ids=lambda thing: thing.__name__)
def test_classes_are_documented(thing):
    assert thing.__doc__ and thing.__doc__.strip()
    if not issubclass(thing, Exception):
        for name, member in vars(thing).items():
            if inspect.isgetsetdescriptor(member) and not name.startswith("_"):
                assert member.__doc__, f"{thing.__name__}.{name}"


@pytest.mark.parametrize(("name", "call"), CALLS, ids=[name for name, _ in CALLS])
def test_calls_are_documented(name, call):
    text = call.__doc__
    assert text, name
    for parameter in inspect.signature(call).parameters:
        if parameter not in ("self", "slf"):
            assert f"{parameter}:" in text, f"{name} does not tell of {parameter}"
    if inspect.isclass(call):
        assert "Raises:" in text
