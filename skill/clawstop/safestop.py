"""How a task that was told to stop leaves: its place saved, its things tidied up, in order.

Each step has a time limit, and one that fails does not keep the rest from being done.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import os
import shutil
import signal
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import UsageError
from .flags import encoded
from .paths import user

if TYPE_CHECKING:
    from .interruptible import Interruptible

SECONDS = 5.0  # for one step; a stop's own grace may be shorter
# Whose things belong to the thread that they were made in; their `close` and `cancel` are quick.
BOUND = ("asyncio", "_asyncio", "uvloop", "sqlite3")
TEMPORARY = ("agent-work", "agent-downloads")  # in the temp folder, a folder a session in each
Step = tuple[str, Callable[[], Any], float]  # what it is, what it does, and how long it may take


class TooLong(BaseException):
    """A step did not end in its time. Not an Exception: whoever tries again and again on any error
    must not catch it."""


class SafeStop:
    def __init__(self, agent: Interruptible) -> None:
        self._agent = agent
        self._errors: list[str] = []

    def stop(self, reason: str = "user_stop") -> dict[str, Any]:
        """All of it, once: `{success, checkpoint, reason, error}`. Not for a running event loop:
        there `await Interruptible.leave()` does the same."""
        return self._agent.handle_interrupt({"reason": reason})

    def run(self, reason: str) -> dict[str, Any]:
        """The steps themselves; `Interruptible` sees to it that they are done once."""
        self._agent.stop_interrupt_polling()
        for name, action, seconds in self._steps(reason):
            with self._noted(name):
                _within(action, seconds)
        return self._result(reason)

    async def leave(self, reason: str) -> dict[str, Any]:
        """The same for asyncio: nothing blocks the loop. What belongs to the loop or its thread is
        called there, and all else in a thread of its own."""
        self._agent.stop_interrupt_polling()
        for name, action, seconds in self._steps(reason):
            with self._noted(name):
                done = action() if _is_bound(action) else await _elsewhere(action, seconds)
                if inspect.isawaitable(done):
                    async with asyncio.timeout(seconds):
                        await done
        return self._result(reason)

    def _steps(self, reason: str) -> Iterator[Step]:
        agent = self._agent
        yield "state", self.save_state, SECONDS
        for action, seconds in reversed(agent.clean_ups):
            yield _name_of(action), action, seconds
        for things, method in ((agent.schedules, "cancel"), (agent.connections, "close")):
            while things:
                one = _Method(things.pop(), method)
                yield one.name, one, SECONDS
        yield "temporary files", self.cleanup_temp_files, SECONDS
        yield "flag", agent.clear_flag, SECONDS
        yield "notice", lambda: agent.notify_main_agent(self._result(reason)), SECONDS

    def _result(self, reason: str) -> dict[str, Any]:
        error = "; ".join(self._errors) or None
        last = self._agent.get_last_checkpoint()
        return {"success": error is None, "checkpoint": last, "reason": reason, "error": error}

    @contextlib.contextmanager
    def _noted(self, name: str) -> Iterator[None]:
        try:
            yield
        except (TimeoutError, TooLong):
            self._errors.append(f"{name}: did not end in its time")
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                raise
            self._errors.append(f"{name}: {type(error).__name__} {error}".rstrip())

    # -- the parts, each of use by itself

    def save_state(self) -> str:
        """Where the state is: `{sessionId, checkpoints: [{name, data, timestamp}], timestamp}`."""
        return str(self._agent.save_state())

    def cleanup_temp_files(self) -> list[str]:
        """Take the session's temporary folders away, and those that were registered; which."""
        base = Path(tempfile.gettempdir())
        session = self._agent.session_id
        names = {encoded(session), *([session] if _is_name(session) else [])}
        folders = [base / kind / name for kind in TEMPORARY for name in sorted(names)]
        gone, errors = [], []
        for one in (*folders, *self._agent.temp_folders):
            try:
                if remove_folder(one):
                    gone.append(str(one))
            except OSError as error:
                errors.append(str(error))
        if errors:
            raise OSError("; ".join(errors))
        return gone

    def close_connections(self) -> None:
        self._each(self._agent.connections, "close")

    def cancel_scheduled_tasks(self) -> None:
        self._each(self._agent.schedules, "cancel")

    def _each(self, things: list[Any], method: str) -> None:
        while things:
            one = _Method(things.pop(), method)
            with self._noted(one.name):
                _within(one, SECONDS)


class _Method:
    """`thing.close()`, or whatever comes of it when it has none."""

    def __init__(self, thing: Any, method: str) -> None:
        self.thing, self._method = thing, method
        self.name = f"{method} {type(thing).__name__}"

    def __call__(self) -> Any:
        return self.call()

    @property
    def call(self) -> Callable[[], Any]:
        return getattr(self.thing, self._method)  # type: ignore[no-any-return]


def _name_of(action: Callable[[], Any]) -> str:
    return str(getattr(action, "__name__", "") or type(action).__name__)


def _is_bound(action: Callable[[], Any]) -> bool:
    """Whether it has to be called in the loop's own thread."""
    if not isinstance(action, _Method):
        return inspect.iscoroutinefunction(action)
    kinds = {kind.__module__.partition(".")[0] for kind in type(action.thing).__mro__}
    return inspect.iscoroutinefunction(action.call) or not kinds.isdisjoint(BOUND)


def _is_cancelled() -> bool:
    """Whether this task of the loop is: a clean-up may well await what it has cancelled."""
    try:
        current = asyncio.current_task()
    except RuntimeError:
        return False
    return current is not None and current.cancelling() > 0


async def _elsewhere(action: Callable[[], Any], seconds: float) -> Any:
    """In a thread of its own, which is left behind when it takes too long. Not in the loop's pool:
    Python waits for that before it exits."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()

    def work() -> None:
        try:
            future.set_result(action())
        except BaseException as error:
            future.set_exception(error)

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(work,), daemon=True).start()
    async with asyncio.timeout(seconds):
        return await asyncio.wrap_future(future)


def _within(action: Callable[[], Any], seconds: float) -> None:
    """In this thread where a signal can end it, since connections belong to their thread; else in
    one of its own, which is left behind when it takes too long."""

    def call() -> None:
        done = action()
        if inspect.iscoroutine(done):
            asyncio.run(done)

    main = threading.current_thread() is threading.main_thread()
    if sys.platform != "win32" and main:
        with _alarm(seconds):
            call()
        return
    failed: list[BaseException] = []

    def work() -> None:
        try:
            call()
        except BaseException as error:
            failed.append(error)

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(work,), daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TooLong
    for error in failed:
        raise error


if sys.platform != "win32":

    @contextlib.contextmanager
    def _alarm(seconds: float) -> Iterator[None]:
        def late(*_: Any) -> None:
            raise TooLong

        before = signal.signal(signal.SIGALRM, late)
        theirs = signal.setitimer(signal.ITIMER_REAL, seconds, seconds)  # again, where it was lost
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            if theirs[0]:  # the task has a timer of its own
                signal.setitimer(signal.ITIMER_REAL, *theirs)


# -- folders


def check_folder(folder: Path) -> Path:
    """A folder that may be taken away; UsageError for one that holds more than a task's own."""
    named = Path(os.path.abspath(folder))
    whole = Path(os.path.realpath(named.parent), named.name)  # a link above it is the person's own
    kept = (Path.home(), Path.cwd(), Path(tempfile.gettempdir()), Path(whole.anchor))
    if any(Path(os.path.realpath(one)).is_relative_to(os.path.realpath(whole)) for one in kept):
        raise UsageError(f"{whole} holds more than this task's files; it is never taken away")
    return whole


def remove_folder(folder: Path) -> bool:
    """Take a folder of ours away with all in it; one that is a link, or somebody else's, or in a
    folder that is, stays."""
    if not _is_name(folder.name):
        return False
    if sys.platform == "win32" or not shutil.rmtree.avoids_symlink_attacks:
        if folder.is_symlink() or not folder.is_dir():
            return False
        shutil.rmtree(folder)
        return True
    try:
        above = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        try:
            info = os.stat(folder.name, dir_fd=above, follow_symlinks=False)
        except OSError:
            return False
        trusted = os.fstat(above).st_uid in (user(), 0)  # nobody else can put another in its place
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != user() or not trusted:
            return False
        shutil.rmtree(folder.name, dir_fd=above)
    finally:
        os.close(above)
    return True


def _is_name(session: str) -> bool:
    """Whether it is one part of a path and nothing else."""
    return session not in ("", ".", "..") and not set(session) & {"/", "\\", "\0"}
