"""A task that cooperates: it hears of a stop, saves its place, tidies up, and leaves by itself.

    with Interruptible(task="mail") as task:
        place = task.resume()
        for row in task(rows):
            ...
            task.save_checkpoint("row", {"number": row.number})

It hears of a stop from the engine at once, from a signal, or from a stop flag at the next look. At
its next check point, a checkpoint or a row, it is left in order (safestop.py), and `Interrupted` is
raised. Inside an agent's tool it needs no arguments: whose it is, is in the environment.

Standard library only: it runs in whatever Python the task has.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import math
import os
import selectors
import signal
import socket
import threading
import time
import weakref
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TypeVar, overload

from . import checkpoints, cookies, flags, wills
from .blocking import Wire
from .checkpoints import State
from .errors import ClawstopError, NotPermitted, UsageError
from .paths import Paths, default_paths, read_json
from .safestop import SECONDS, SafeStop, check_folder

log = logging.getLogger("clawstop.interruptible")

INTERVAL = 5000.0  # ms between looks at files
SHORTEST, LONGEST = 10.0, 3_600_000.0  # ms; less is a busy loop, more is never
AGAIN_SECONDS = 1.0  # before the engine is looked for again, doubled where it has refused us
REFUSED_SECONDS = 60.0  # and no longer than this: it may learn whose we are
MOMENT = 0.01  # between two looks whether somebody else has left
NOTICE_SECONDS = 1.0
MAX_SESSION = 4096  # characters

T = TypeVar("T")
Flag = dict[str, Any]  # {sessionId, reason, timestamp, signal}
Handler = Callable[[int, FrameType | None], Any] | int | None

# Set in whatever is done to leave: a clean-up may save its place, and that is no check point then.
_leaving: contextvars.ContextVar[bool] = contextvars.ContextVar("clawstop_leaving", default=False)


class Interrupted(Exception):
    """The task was told to stop, and has been left in order. Its text is `INTERRUPTED`."""

    def __init__(self, flag: Flag, checkpoint: dict[str, Any] | None = None) -> None:
        super().__init__("INTERRUPTED")
        self.flag = flag
        self.reason = str(flag.get("reason") or "")
        self.checkpoint = checkpoint


class Interruptible:
    def __init__(
        self,
        session_id: str | None = None,
        *,
        task: str = "",
        interval: float | None = None,
        paths: Paths | None = None,
    ) -> None:
        """`session_id` is the host's id or a session key; without it the one whose tool this is.
        Several tasks of one session are told apart by `task`."""
        self._owner = cookies.parse(os.environ.get(cookies.VARIABLE, ""))
        self.session_id = session_id or (self._owner.session if self._owner else "")
        if not flags.is_session(self.session_id) or len(self.session_id) > MAX_SESSION:
            raise UsageError(
                "whose task is it? Give the id or key of its session: Interruptible('abc123')"
            )
        if not isinstance(task, str):
            raise UsageError(f"a task's name is a text, not {task!r}")
        wanted = _interval() if interval is None else interval
        if not isinstance(wanted, int | float) or math.isnan(wanted):
            raise UsageError(f"an interval is a number of milliseconds, not {wanted!r}")
        self.generation = self._owner.generation if self._owner else 0
        self.interrupt_check_interval = min(max(SHORTEST, wanted), LONGEST)
        self.clean_ups: list[tuple[Callable[[], Any], float]] = []
        self.connections: list[Any] = []
        self.schedules: list[Any] = []
        self.temp_folders: list[Path] = []
        self._paths = paths or default_paths()
        self._state = State(self.session_id, task)
        self._flag: Flag | None = None
        self._left: dict[str, Any] | None = None  # what came of leaving
        self._lock = threading.Lock()  # one leaves, once; whoever comes meanwhile goes at once
        self._saving = threading.RLock()  # an older place must not replace a newer one
        self._looked = -math.inf  # when files were, while nothing listens
        self._departure: asyncio.Task[dict[str, Any]] | None = None  # the same in a loop
        self._thread: threading.Thread | None = None
        self._listener: threading.Thread | None = None  # the last one
        self._link: Wire | None = None  # to the engine, when nothing listens any more
        self._unlinked = False  # nobody needs that link any more
        # Ours and the thread's: closed, ours ends it; written to, the other wakes who sleeps. A
        # signal may come at any moment, so no lock is in this.
        self._ends: tuple[socket.socket, socket.socket] | None = None

    # -- hearing of a stop

    @property
    def is_interrupted(self) -> bool:
        return self._flag is not None

    @property
    def _listens(self) -> bool:
        """Not in a forked child: its copy of the thread is dead."""
        return self._thread is not None and self._thread.is_alive()

    def start_interrupt_polling(self) -> None:
        """Listen in the background: to the engine, for signals, and for flags."""
        if self._listens:
            return
        self._ends, self._unlinked = socket.socketpair(), False
        for end in self._ends:
            end.setblocking(False)
        flags.shared()  # here: its first answer takes a lock, which a fork in between would keep
        thread = threading.Thread(target=self._listen, name="clawstop", daemon=True)
        self._thread = self._listener = thread
        _listening.add(self)
        thread.start()
        _signals.attach(self, owned=self._owner is not None)

    def stop_interrupt_polling(self) -> None:
        """Never waits: what listens ends by itself, and tells nobody anything any more."""
        ends, self._ends, self._thread = self._ends, None, None
        if ends:
            ends[0].close()
        if not _leaving.get():  # a signal would cut off how it is left
            _signals.detach(self)

    def check_for_interrupt(self) -> Flag | None:
        """`{sessionId, reason, timestamp, signal}`, or None. While nothing listens in the
        background, files are looked at now."""
        if self._flag is None and not self._listens:
            self._look()
        return dict(self._flag) if self._flag is not None else None

    def check(self) -> None:
        """A check point: leaves in order and raises Interrupted, if the task was told to stop."""
        if self._flag is None and self._thread is None:
            self._glance()
        if self._flag is not None and not _leaving.get():
            raise self._interrupted(self.handle_interrupt(self._flag))

    def sleep(self, seconds: float) -> None:
        """A check point that takes a while: it ends at once when the task is told to stop."""
        end = time.monotonic() + seconds
        while self._flag is None and (left := end - time.monotonic()) > 0:
            ends = self._ends
            if ends and self._listens:
                _wait([ends[0]], left)
            else:
                time.sleep(min(left, self._interval))
                self._look()
        self.check()

    @property
    def _interval(self) -> float:
        return self.interrupt_check_interval / 1000

    def _glance(self) -> None:
        """While nothing listens: look, once an interval."""
        if self._due:
            self._looked = time.monotonic()
            self._look()

    @property
    def _due(self) -> bool:
        return time.monotonic() - self._looked >= self._interval

    def _listen(self) -> None:
        ends, wire, due, pause = self._ends, None, -math.inf, AGAIN_SECONDS
        assert ends
        try:
            while self._flag is None and self._thread is threading.current_thread():
                self._look()
                if wire is None and time.monotonic() >= due:
                    try:
                        wire, pause = self._connected(), AGAIN_SECONDS
                    except NotPermitted as error:  # another session's: files may still tell
                        if pause == AGAIN_SECONDS:
                            log.warning("%s", error)
                        pause = min(2 * pause, REFUSED_SECONDS)
                    due = time.monotonic() + pause
                while wire and wire.pending:
                    wire = self._heard(wire)
                seconds = self._interval if wire else min(self._interval, pause)
                heard = [ends[1], *([wire.socket] if wire else [])]
                if self._flag is None and wire and wire.socket in _wait(heard, seconds):
                    wire = self._heard(wire)
                elif self._flag is None and not wire:
                    _wait(heard, seconds)
        finally:
            ends[1].close()
            if wire and self._flag is None:
                wire.close()
            else:
                self._link = wire  # it is told there how the task has left
                if wire and self._unlinked:
                    wire.close()

    def _connected(self) -> Wire | None:
        """The engine, if there is one; it may come and go."""
        try:
            wire = self._wire()
        except NotPermitted:
            raise
        except (OSError, ValueError, ClawstopError):
            return None
        self._hear(wire.welcome.get("interrupt"))
        return wire

    def _wire(self) -> Wire:
        endpoint = read_json(self._paths.endpoint)
        return Wire(endpoint, "task", session=self.session_id, generation=self.generation)

    def _heard(self, wire: Wire) -> Wire | None:
        try:
            news = wire.read()
        except (OSError, ValueError, ClawstopError):
            wire.close()
            return None
        if news.get("method") == "interrupt":
            self._hear(news.get("params"))
        return wire

    def _look(self) -> None:
        """At the files. Whatever is wrong with them, the next look may see more."""
        try:
            places = flags.folders(self._paths.flags)
            state = self._paths.known_state
            found = flags.check(places, self.session_id, owner=self._owner, state=state)
            if found:
                self._interrupt(found.as_dict())
        except Exception as error:
            log.warning("stop flags cannot be looked for: %r", error)

    def _hear(self, told: Any) -> None:
        """What the engine says is for us, unless our own run began after that stop, or our lease
        outlives it."""
        if not isinstance(told, dict):
            return
        reach = {name: told.pop(name) for name in flags.REACH if name in told}
        if flags.concerns(reach, self._owner, told.get("sessionId", self.session_id)):
            self._interrupt(told)

    def _interrupt(self, told: Flag) -> None:
        off = self._thread is None and threading.current_thread() is self._listener
        if self._flag is None and not off:
            now = round(time.time() * 1000)
            default = {"sessionId": self.session_id, "reason": "", "timestamp": now}
            self._flag = {**default, "signal": flags.SIGNAL, **told}
            if self._ends:
                with contextlib.suppress(OSError):
                    self._ends[1].send(b"!")

    # -- leaving

    def handle_interrupt(self, flag: Flag | None = None) -> dict[str, Any]:
        """Leave in order, once: polling off, state saved, clean-ups, flag cleared, main agent
        notified. Gives `{success, checkpoint, reason, error}`."""
        self._interrupt(flag or {})
        if _leaving.get():
            raise UsageError("a clean-up cannot leave once more")
        if self._left is not None:
            return self._left
        if not self._lock.acquire(blocking=False):
            # Another thread leaves, and may wait for this one: a clean-up that ends its workers.
            raise self._interrupted({"checkpoint": self.get_last_checkpoint()})
        token = _leaving.set(True)
        try:
            if self._left is None:
                reason = str((flag or {}).get("reason") or self._reason)
                self._left = SafeStop(self).run(reason)
        finally:
            _leaving.reset(token)
            self._lock.release()
        return self._left

    async def leave(self) -> dict[str, Any]:
        """The same for asyncio; nothing blocks the loop."""
        self._interrupt({})
        if self._left is not None:
            return self._left
        if self._departure is None:
            self._departure = asyncio.create_task(self._depart())
        return await asyncio.shield(self._departure)

    async def _depart(self) -> dict[str, Any]:
        _leaving.set(True)  # for this task of the loop, and what it starts
        while not self._lock.acquire(blocking=False):  # a thread leaves
            await asyncio.sleep(MOMENT)
        try:
            if self._left is None:
                self._left = await SafeStop(self).leave(self._reason)
        finally:
            self._lock.release()
        return self._left

    @property
    def _reason(self) -> str:
        return str((self._flag or {}).get("reason") or "")

    def _interrupted(self, left: dict[str, Any]) -> Interrupted:
        assert self._flag is not None
        return Interrupted(dict(self._flag), left["checkpoint"])

    def clear_flag(self) -> int:
        """How many there were. Where an engine knows the session they are its to take away: it has
        to see an order, and others of this session still look for what a stop has written."""
        if self._owner is not None or self._engine_minds():
            return 0
        return flags.clear(flags.folders(self._paths.flags), self.session_id)

    def _engine_minds(self) -> bool:
        """Whether there is an engine that knows this session."""
        self._settle()
        try:
            with contextlib.ExitStack() as stack:
                wire = self._link or stack.enter_context(contextlib.closing(self._wire()))
                return wire.welcome.get("known") is not False
        except NotPermitted:
            return True
        except (OSError, ValueError, ClawstopError):
            return False

    def _settle(self) -> None:
        """Until what listened has handed over its wire."""
        if self._listener and self._thread is None:
            self._listener.join(NOTICE_SECONDS)

    def notify_main_agent(self, result: dict[str, Any]) -> bool:
        """Tell the engine, for the receipt and the person. It wakes nobody. False: nobody heard."""
        last = result.get("checkpoint") or {}
        about = {
            "checkpoint": last.get("name"),
            "reason": result.get("reason"),
            "error": result.get("error"),
            "task": self._state.task,
        }
        told = {name: flags.plain(str(words or "")) for name, words in about.items()}
        self._settle()
        link, self._link = self._link, None
        try:
            with contextlib.closing(link or self._wire()) as wire:
                wire.ask("interrupted", {"interrupted": True, **told}, NOTICE_SECONDS)
        except (OSError, ValueError, ClawstopError):
            return False
        return True

    # -- what has to be tidied up then

    def clean_up(self, action: Callable[[], Any], seconds: float = SECONDS) -> None:
        """Call this when the task is stopped, the newest first; a coroutine function too."""
        if not isinstance(seconds, int | float) or not 0 < seconds <= LONGEST / 1000:
            raise UsageError(f"a clean-up has up to {LONGEST / 1000:.0f} seconds, not {seconds!r}")
        self.clean_ups.append((action, seconds))

    def connection(self, thing: T) -> T:
        """Close this then."""
        self.connections.append(thing)
        return thing

    def schedule(self, thing: T) -> T:
        """Cancel this then: a timer, an asyncio task."""
        self.schedules.append(thing)
        return thing

    def temp_folder(self, folder: str | os.PathLike[str]) -> Path:
        """Take this folder away then."""
        self.temp_folders.append(check_folder(Path(folder)))
        return self.temp_folders[-1]

    # -- checkpoints

    @property
    def checkpoints(self) -> list[dict[str, Any]]:
        return self._state.checkpoints

    def get_last_checkpoint(self) -> dict[str, Any] | None:
        return self._state.last

    def save_checkpoint(self, name: str, data: Any = None) -> dict[str, Any]:
        """On disk when it returns, whatever happens then; a check point too."""
        saved = self._save(name, data)
        self.check()
        return saved

    async def checkpoint(self, name: str, data: Any = None) -> dict[str, Any]:
        """The same for asyncio."""
        saved = await asyncio.to_thread(self._save, name, data)
        await self.checked()
        return saved

    async def checked(self) -> None:
        """A check point for asyncio, without saving."""
        if self._flag is None and self._thread is None and self._due:
            await asyncio.to_thread(self._glance)
        if self._flag is not None and not _leaving.get():
            raise self._interrupted(await self.leave())

    def will(self, **told: Any) -> Path:
        """What shall be known if a crash cuts this off: `task`, `progress`, `last_action`,
        `note_to_self`, `can_resume`, and whatever else. It replaces an earlier one."""
        return wills.write(self._paths.wills, self.session_id, told)

    def resume(self) -> dict[str, Any] | None:
        """Where this task was when it was cut off: its last checkpoint; None to begin anew."""
        found = checkpoints.load(self._file)
        if found is None or found.finished:
            return None
        if (found.session, found.task) != (self._state.session, self._state.task):
            return None  # names that differ in capitals only are one file on some disks
        self._state.checkpoints = found.checkpoints
        return self._state.last

    def finish(self) -> None:
        """It is done: there is nothing to resume."""
        if self._state.checkpoints:
            self._state.finished = True
            self.save_state()

    def save_state(self) -> Path:
        """Where it is. A try that has not come anywhere leaves an earlier one's place alone."""
        with self._saving:
            if not self._state.checkpoints and checkpoints.load(self._file):
                return self._file
            self._state.at = time.time()
            return checkpoints.save(self._folder, self._state)

    def _save(self, name: str, data: Any) -> dict[str, Any]:
        with self._saving:
            one = checkpoints.checkpoint(name, data, time.time())
            before = self._state.checkpoints
            self._state.checkpoints, self._state.finished = [*before, one], False
            try:
                self.save_state()
            except ClawstopError:
                self._state.checkpoints = before
                raise
            return one

    @property
    def _folder(self) -> Path:
        return checkpoints.folder(self._paths.checkpoints)

    @property
    def _file(self) -> Path:
        return checkpoints.file_of(self._folder, self.session_id, self._state.task)

    # -- around a task, and through its rows

    @overload
    def __call__(self, rows: AsyncIterable[T]) -> AsyncIterator[T]: ...
    @overload
    def __call__(self, rows: Iterable[T]) -> Iterator[T]: ...
    def __call__(self, rows: Any) -> Any:
        """The rows, with a check point before each."""
        return self._each_async(rows) if isinstance(rows, AsyncIterable) else self._each(rows)

    def _each(self, rows: Iterable[T]) -> Iterator[T]:
        self.check()
        for row in rows:
            yield row
            self.check()  # before the next one is taken: it would be lost

    async def _each_async(self, rows: AsyncIterable[T]) -> AsyncIterator[T]:
        await self.checked()
        async for row in rows:
            yield row
            await self.checked()

    def __enter__(self) -> Interruptible:
        self.start_interrupt_polling()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        if not _leaving.get():
            self._lock.acquire()  # until the thread that leaves has
            self._lock.release()
        self._close()
        if kind is None and self._flag is None:
            self.finish()

    async def __aenter__(self) -> Interruptible:
        self.start_interrupt_polling()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        try:
            while self._lock.locked() and not _leaving.get():
                await asyncio.sleep(MOMENT)
        finally:
            self._close()
        if kind is None and self._flag is None:
            await asyncio.to_thread(self.finish)

    def _close(self) -> None:
        self.stop_interrupt_polling()
        _signals.detach(self)
        self._unlinked = True  # before the look: the listener looks after it has handed over
        if self._link:
            self._link.close()


class _Signals:
    """One handler for all tasks of this process, in place while any of them listens."""

    def __init__(self) -> None:
        self._tasks: list[Interruptible] = []
        self._before: dict[int, Handler] = {}
        self._pid = 0

    def attach(self, task: Interruptible, *, owned: bool) -> None:
        if threading.current_thread() is not threading.main_thread():
            log.warning("a task outside the main thread is not told by signals: it gets no grace")
            return  # only there signals can be handled
        if self._pid != os.getpid():  # of the process that this one was forked from
            self._restore()
            self._tasks = []
        if not self._tasks:
            self._pid = os.getpid()
            # Ctrl-C of a person at a terminal stays theirs.
            mine = [signal.SIGTERM, *([signal.SIGINT] if owned else [])]
            self._before = {number: signal.signal(number, self._told) for number in mine}
        if task not in self._tasks:
            self._tasks.append(task)

    def detach(self, task: Interruptible) -> None:
        if task not in self._tasks or threading.current_thread() is not threading.main_thread():
            return
        self._tasks.remove(task)
        if not self._tasks:
            self._restore()

    def _restore(self) -> None:
        for number, before in self._before.items():
            if signal.getsignal(number) == self._told:  # nobody has another by now
                signal.signal(number, before)
        self._before = {}

    def _told(self, number: int, _: FrameType | None) -> None:
        if os.getpid() != self._pid:  # a child that was forked: it is not the task
            self._restore()
            signal.raise_signal(number)
            return
        name = signal.Signals(number).name
        for task in self._tasks:
            task._interrupt({"reason": name, "signal": name})


_signals = _Signals()
_listening: weakref.WeakSet[Interruptible] = weakref.WeakSet()


def _forked() -> None:
    """In the child nothing listens: its check points look for themselves."""
    for task in list(_listening):
        task._thread = task._ends = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _wait(sockets: list[socket.socket], seconds: float) -> list[Any]:
    """Which of them have something to read; none when that cannot be told any more. By poll, which
    needs no descriptor of its own: there may be none left."""
    with getattr(selectors, "PollSelector", selectors.DefaultSelector)() as selector:
        try:
            for one in sockets:
                selector.register(one, selectors.EVENT_READ)
        except (OSError, ValueError):  # it is closed
            return []
        return [key.fileobj for key, _ in selector.select(seconds)]


def _interval() -> float:
    try:
        wanted = float(os.environ.get("INTERRUPT_CHECK_INTERVAL") or INTERVAL)
    except ValueError:
        return INTERVAL
    return wanted if math.isfinite(wanted) else INTERVAL
