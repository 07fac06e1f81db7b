"""Where the time of a call goes: named functions of the program, timed from outside while a block runs."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any


def resolve(module: str, name: str) -> tuple[Any, str]:
    """Where a function is kept, and its name there. Raises AttributeError when it is no more."""
    owner: Any = importlib.import_module(module)
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    getattr(owner, last)
    return owner, last


class Stopwatch:
    """Times calls of named functions in the thread that made it; of calls inside one another only the outermost."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = defaultdict(float)
        self._thread = threading.get_ident()
        self._inside = False

    def around(self, label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, timed under `label`."""

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._inside or threading.get_ident() != self._thread:
                return function(*args, **kwargs)
            self._inside = True
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.parts[label] += time.perf_counter() - began
                self._inside = False

        return timed

    def around_block(self, label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that returns a context manager, the entering and leaving of it timed under `label`."""

        @functools.wraps(function)
        @contextlib.contextmanager
        def timed(*args: Any, **kwargs: Any) -> Iterator[Any]:
            with contextlib.ExitStack() as stack:
                value = self.around(label, stack.enter_context)(function(*args, **kwargs))
                inner = stack.pop_all()
                try:
                    yield value
                except BaseException:
                    if not self.around(label, inner.__exit__)(*sys.exc_info()):
                        raise
                else:
                    self.around(label, inner.close)()

        return timed

    def take(self) -> dict[str, float]:
        """What was timed since the last call, in seconds."""
        taken = dict(self.parts)
        self.parts.clear()
        return taken


@contextlib.contextmanager
def replaced(module: str, name: str, by: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Put a wrapper in a function's place while the block runs."""
    owner, last = resolve(module, name)
    original = getattr(owner, last)
    setattr(owner, last, by(original))
    try:
        yield
    finally:
        setattr(owner, last, original)


@contextlib.contextmanager
def watched(parts: Iterable[tuple[str, str, str]], blocks: Iterable[tuple[str, str, str]] = ()) -> Iterator[Stopwatch]:
    """A stopwatch on all these functions, and on entering and leaving these blocks, while the block runs."""
    watch = Stopwatch()
    with contextlib.ExitStack() as stack:
        for label, module, name in parts:
            stack.enter_context(replaced(module, name, functools.partial(watch.around, label)))
        for label, module, name in blocks:
            stack.enter_context(replaced(module, name, functools.partial(watch.around_block, label)))
        yield watch
