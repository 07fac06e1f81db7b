"""A deadline for a call that may hang for ever, as calls into a wedged driver do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")


class Patience:
    """Asks in a thread and waits so long, no longer. While an earlier question hangs, no other is asked.

    A thread cannot be ended from outside: one that hangs is left behind as a daemon.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._hanging: threading.Thread | None = None

    @property
    def wedged(self) -> bool:
        """Whether an earlier question still hangs."""
        return self._hanging is not None and self._hanging.is_alive()

    def leave(self, thread: threading.Thread) -> None:
        """Count a thread that does not end as a question that hangs."""
        self._hanging = thread

    def ask(self, question: Callable[[], Answer], otherwise: Answer) -> Answer:
        """The answer, or `otherwise` where none comes in time. What the question raises is raised here."""
        if self.wedged:
            return otherwise
        answers: list[Answer] = []
        errors: list[BaseException] = []

        def put() -> None:
            try:
                answers.append(question())
            except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
                errors.append(error)

        thread = threading.Thread(target=put, name="gpu-reader", daemon=True)
        thread.start()
        thread.join(self.limit_s)
        if errors:
            raise errors[0]
        if answers:
            return answers[0]
        self.leave(thread)
        return otherwise
