"""One version of one endpoint on this node: a thread that applies its log to its store, and rebuilds a damaged store.

The store holds the position of the log in the same transaction as the rows, so a killed follower resumes exactly where
it was: no change is applied twice or skipped. A damaged store is moved away and rebuilt from the newest intact snapshot
and the log. A damaged log is never skipped: the follower reports it and waits.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

from headrace.core.endpoints import Endpoint
from headrace.core.errors import Exit, ProjectError
from headrace.core.files.objects import ObjectPath
from headrace.log.log import Log, LogCutError, LogDamagedError
from headrace.serve.base.settings import Settings
from headrace.serve.replica import folders
from headrace.serve.replica.pointers import reported_damage
from headrace.serve.replica.restore import restore
from headrace.store.endpoint.writer import StoreWriter
from headrace.store.lmdb.errors import StoreDamagedError

_LOG = logging.getLogger(__name__)

State = Literal["hydrating", "ready", "failed"]
_NEAR_SECONDS, _FAR_SECONDS = 0.025, 1.0
"""How often to read a log on a disk, or on an object store."""
_TRY_AGAIN_SECONDS = 2.0
_LOOK_SECONDS = 0.5
_AGAIN_SECONDS = 10.0
"""A store that is damaged again within this time is not rebuilt at once."""
_AT_ONCE = 16


@dataclass
class LogFollower:
    """Runs from `start` to `close`. `changed` is called when another folder is to be served."""

    settings: Settings
    endpoint: Endpoint
    log: Log
    served: Path | None
    """The folder that answers requests; None while none may."""
    changed: Callable[[], None]
    trouble: ProjectError | None = field(default=None, init=False)
    """Why it makes no progress."""
    snapshot: tuple[int, datetime] | None = field(default=None, init=False)
    """Position and time of the newest known snapshot; position 0: none existed at that time."""
    _published: bool = field(default=True, init=False)
    """Whether the pointer for readers is up to date."""
    _writer: StoreWriter | None = field(default=None, init=False)
    _folder: Path | None = field(default=None, init=False)
    """The folder that is being written: the served one, or one that will be served once it has caught up."""
    _behind: tuple[int, float] = field(default=(0, 0.0), init=False)
    """Segments and seconds still to be applied."""
    _reports_checked: float = field(default=0.0, init=False)
    _gave_up: float = field(default=float("-inf"), init=False)
    _new_definition: Endpoint | None = field(default=None, init=False)
    _check_requested: bool = field(default=False, init=False)
    _is_cut: bool = field(default=False, init=False)
    """Whether the log no longer has the segments that follow the store."""
    _stopping: threading.Event = field(default_factory=threading.Event, init=False)
    _lent: threading.Lock = field(default_factory=threading.Lock, init=False)
    """Held while a snapshot uses the writer, so that it is not closed."""

    def start(self) -> None:
        name = f"{self.endpoint.name} v{self.endpoint.version}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current segment."""
        self._stopping.set()

    def close(self, seconds: float | None = None) -> None:
        """Stop, and wait for the end at most this long."""
        self._stopping.set()
        self._thread.join(seconds)

    @contextmanager
    def writer(self) -> Iterator[StoreWriter | None]:
        """The store of a healthy follower, for a snapshot. It may be written meanwhile, but not replaced."""
        with self._lent:
            yield self._writer if self.trouble is None and self.served == self._folder else None

    @property
    def state(self) -> State:
        if self.served is not None and self._published:
            return "ready"
        return "hydrating" if self.trouble is None else "failed"

    @property
    def position(self) -> int:
        """The newest applied segment."""
        writer = self._writer
        return writer.position if writer else 0

    def to_json(self) -> dict[str, Any]:
        """The status of the follower. Numbers of a store that is being written may be of two moments."""
        writer, trouble = self._writer, self.trouble
        position = writer.position if writer else None
        segments, seconds = self._behind
        snapshot = self.snapshot if self.snapshot and self.snapshot[0] else None
        return {
            "state": self.state,
            "version": self.endpoint.version,
            "position": position,
            "log_end": None if position is None else position + segments,
            "lag": {"segments": segments, "seconds": round(seconds, 3)},
            "rows": writer.rows if writer else None,
            "changes": writer.version if writer else None,
            "refused": writer.refused if writer else None,
            "snapshot": snapshot[0] if snapshot else None,
            "snapshot_age_s": round((datetime.now(UTC) - snapshot[1]).total_seconds(), 1) if snapshot else None,
            "error": trouble and {"code": trouble.code, "message": trouble.message, "hint": trouble.hint},
        }

    def check(self) -> None:
        """Serve nothing until the store was checked, which opening it does."""
        self._check_requested = True

    def redefine(self, endpoint: Endpoint) -> None:
        """Take over changed policies and text columns of the version."""
        self._new_definition = endpoint

    def _run(self) -> None:
        pause = _FAR_SECONDS if isinstance(self.settings.log, ObjectPath) else _NEAR_SECONDS
        while not self._stopping.is_set():
            if not self._try_step():
                self._stopping.wait(_TRY_AGAIN_SECONDS if self.trouble else pause)
        self._close_writer()

    def _try_step(self) -> bool:
        """Run one step; returns whether the next should follow at once."""
        try:
            moved = self._step()
        except StoreDamagedError as damage:
            return self._discard_store(str(damage))
        except LogCutError as cut:
            _LOG.warning("%s has to continue from a snapshot: %s", self.endpoint.name, cut)
            self._is_cut = True
            return True
        except LogDamagedError as damage:
            self._report(_log_damaged(self.endpoint, str(damage)))
        except OSError as error:
            self._report(_unreachable(self.settings, error))
        except ProjectError as error:
            self._report(error)
        except Exception as error:  # a failure of one endpoint must not stop the others
            self._report(_fault(self.settings, self.endpoint, error))
        else:
            self.trouble = None
            return moved
        return False

    def _step(self) -> bool:
        if self._new_definition is not None and self._new_definition != self.endpoint:
            self.endpoint = self._new_definition
            self._close_writer()
        if self._check_requested:
            self._check_requested = False
            self._serve(None)
            self._close_writer()
        writer = self._jump() if self._is_cut else self._writer or self._open()
        self._check_reports()
        segments = self.log.after(writer.position, _AT_ONCE)
        if not segments:
            self._behind = (0, 0.0)
            self._caught_up()
            return False
        end = segments[-1].position if len(segments) < _AT_ONCE else self.log.end()
        for segment in segments:
            age = (datetime.now(UTC) - segment.at).total_seconds()
            self._behind = (end - segment.position + 1, max(0.0, age))
            writer.apply(segment.position, partial(self.log.changes, segment))
            if self._stopping.is_set():
                return False
        if len(segments) < _AT_ONCE:
            self._behind = (0, 0.0)
            self._caught_up()
        return True

    def _open(self) -> StoreWriter:
        """Open and check the current store, or create one."""
        version, log = self.endpoint.version, self.log.id
        home = self.settings.store / self.endpoint.name
        folder = self._folder or self.served or next(iter(folders.copies(home, version, log)), None)
        if folder is None:
            folder = restore(self.settings, self.endpoint, self.log, folders.new_folder(home, version, log))
        self._folder = folder
        self._raise_reported_damage()
        self._writer = StoreWriter.open(folder, self.endpoint, events=self.settings.spec.events)
        return self._writer

    def _check_reports(self) -> None:
        """Readers verify each row they return; damage that they report counts like damage found here."""
        now = time.monotonic()
        if now - self._reports_checked >= _LOOK_SECONDS:
            self._reports_checked = now
            self._raise_reported_damage()

    def _raise_reported_damage(self) -> None:
        reason = None if self._folder is None else reported_damage(self._folder)
        if reason is not None:
            raise StoreDamagedError(reason)

    def _caught_up(self) -> None:
        """Serve the store that was built, in place of the previous one."""
        if self.served == self._folder and self._published:
            return
        old = self.served
        self._serve(self._folder)
        if old is not None and old != self._folder:
            folders.remove(old)

    def _serve(self, folder: Path | None) -> None:
        self.served, self._published = folder, False
        self.changed()
        self._published = True

    def _discard_store(self, reason: str) -> bool:
        """Stop serving the store that is being written and start a new one: at once, unless it was just tried."""
        again = time.monotonic() - self._gave_up < _AGAIN_SECONDS
        self._gave_up = time.monotonic()
        _LOG.warning("the store of %s is damaged and is rebuilt: %s", self.endpoint.name, reason)
        damaged = self._folder
        if damaged is not None and self.served == damaged:
            self._serve(None)
        self._close_writer()
        if damaged is not None:
            folders.put_aside(damaged)
        self._folder = None
        self.trouble = _store_damaged(self.endpoint, reason) if again else None
        return not again

    def _jump(self) -> StoreWriter:
        """The log was truncated ahead of the store: restart from a snapshot, while the old store still answers."""
        behind = self._writer.position if self._writer else 0
        home = self.settings.store / self.endpoint.name
        target = folders.new_folder(home, self.endpoint.version, self.log.id)
        restore(self.settings, self.endpoint, self.log, target, after=behind)
        self._close_writer()
        if self._folder is not None and self._folder != self.served:
            folders.remove(self._folder)
        self._folder, self._is_cut = target, False
        return self._open()

    def _close_writer(self) -> None:
        with self._lent:
            if self._writer is not None:
                self._writer.close()
                self._writer = None

    def _report(self, trouble: ProjectError) -> None:
        if self.trouble is None or self.trouble.message != trouble.message:
            _LOG.warning("%s: %s", self.endpoint.name, trouble.message)
        self.trouble = trouble


def _log_damaged(endpoint: Endpoint, damage: str) -> ProjectError:
    return ProjectError(
        "log-damaged",
        f"the log of endpoint '{endpoint.name}' v{endpoint.version} is damaged: {damage}",
        hint="earlier rows are served; restore the file, or rewrite the endpoint: headrace run --new-generation",
    )


def _store_damaged(endpoint: Endpoint, damage: str) -> ProjectError:
    return ProjectError(
        "store-damaged",
        f"the store of endpoint '{endpoint.name}' is damaged repeatedly: {damage}",
        hint="check the disk; the store is rebuilt from snapshot and log",
    )


def _unreachable(settings: Settings, error: OSError) -> ProjectError:
    reason = settings.redact(str(error.strerror or error))
    return ProjectError(
        "log-unreachable",
        f"{error.filename or settings.log} cannot be read: {reason}",
        hint="rows applied so far are served; the follower resumes when the log is available",
    )


def _fault(settings: Settings, endpoint: Endpoint, error: Exception) -> ProjectError:
    if os.strerror(errno.ENOSPC) in str(error):  # LMDB has no separate error for it
        hint = "free disk space; the follower then resumes, and rows applied so far are served"
        return ProjectError("disk-full", f"the disk of {settings.store} is full", hint=hint, exit_code=Exit.TRANSIENT)
    _LOG.exception("the log of %s cannot be applied", endpoint.name)
    return ProjectError(
        "applier-failed",
        f"the log of endpoint '{endpoint.name}' cannot be applied: {type(error).__name__}: {error}",
        hint="this is a bug in headrace; please report it with the output of the applier",
    )
