"""Futures in event loops.

No thread but the loop's own touches the loop: a client has a descriptor for it, a bell, which the loop watches while requests are
awaited. So nothing can be called in a loop that was closed, and a loop that ends early just watches no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rowmill.errors import Error, InputError

if TYPE_CHECKING:
    from rowmill._rowmill import Client, Future, Result


@dataclass
class _Awaited:
    future: Future
    # Kept by the tasks that wait. A task, and so its loop, that nobody else keeps must not be kept from here.
    waiters: weakref.WeakSet[asyncio.Future[None]] = field(default_factory=weakref.WeakSet)


class _Ear:
    """A client's bell in an event loop. Used by the loop's thread only; it keeps neither the client nor the loop."""

    def __init__(self, client: Client) -> None:
        self._bell = client._bell()
        self._awaited: dict[int, _Awaited] = {}
        self._tokens: dict[Future, int] = {}
        self._next = 0

    def listen(self, future: Future, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        waiter = loop.create_future()
        token = self._tokens.get(future)
        if token is None:
            if not self._awaited:
                # What nobody awaited any more when it was answered.
                self._bell.heard()
                loop.add_reader(self._bell.fileno(), self._hear)
            token = self._next
            self._next += 1
            self._tokens[future] = token
            self._awaited[token] = _Awaited(future)
        self._awaited[token].waiters.add(waiter)
        return waiter

    def ring_for(self, future: Future) -> None:
        future._ring(self._bell, self._tokens[future])

    def waits_once(self, future: Future) -> bool:
        return len(self._awaited[self._tokens[future]].waiters) == 1

    def forget(self, future: Future, waiter: asyncio.Future[None], loop: asyncio.AbstractEventLoop) -> None:
        token = self._tokens[future]
        awaited = self._awaited[token]
        awaited.waiters.discard(waiter)
        if awaited.waiters:
            return
        del self._awaited[token], self._tokens[future]
        # A loop that was closed with the task in it watches nothing.
        if not self._awaited and not loop.is_closed():
            loop.remove_reader(self._bell.fileno())

    def _hear(self) -> None:
        for token in self._bell.heard():
            awaited = self._awaited.get(token)
            for waiter in awaited.waiters if awaited else ():
                if not waiter.done():
                    waiter.set_result(None)


_Ears = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Ear]

# Without a lock, under which the garbage collector may run anybody's code: each step is one operation of a dict, and a loop's ear is
# made by the loop's own thread.
_ears: weakref.WeakKeyDictionary[Client, _Ears] = weakref.WeakKeyDictionary()


def _ear_of(client: Client, loop: asyncio.AbstractEventLoop) -> _Ear:
    ears = _ears.setdefault(client, weakref.WeakKeyDictionary())
    ear = ears.get(loop)
    if ear is None:
        for known in ears.keyrefs():
            other = known()
            if other is not None and other.is_closed():
                ears.pop(other, None)
        ear = ears[loop] = _Ear(client)
    return ear


def _claim(future: Future, loop: asyncio.AbstractEventLoop) -> None:
    """Has it awaited in this loop only, since its bell is rung in one."""
    own = weakref.ref(loop)
    before: Any = None
    while (found := future._claim(before, own)) is not own:
        other = found()
        if other is loop:
            return
        if other is not None and not other.is_closed():
            raise InputError("the future is awaited in another event loop; submit a request in each")
        before = found


def wait(future: Future) -> Generator[Any, None, Result]:
    """What ``Future.__await__`` gives."""
    if not future.done():
        loop = asyncio.get_running_loop()
        _claim(future, loop)
        ear = _ear_of(future._client, loop)
        waiter = ear.listen(future, loop)
        try:
            ear.ring_for(future)
            yield from waiter
        except asyncio.CancelledError:
            if ear.waits_once(future):
                # Where the connection has ended there is nothing to cancel.
                with contextlib.suppress(Error):
                    future.cancel()
            raise
        finally:
            ear.forget(future, waiter, loop)
    return future.result()
