"""One version of one endpoint on this node: a thread that follows its log into its store, and heals that.

The store keeps the position of the log in the same transaction as the rows, so a follower that was killed goes on where
it was: nothing is applied twice, nothing left out. A damaged store is put aside and built anew from the newest good
snapshot and the log. A damaged log is never skipped: the follower says so and waits.
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
from headrace.serve.replica.restore import begin
from headrace.store.endpoint.writer import StoreWriter
from headrace.store.lmdb.errors import StoreDamagedError

_LOG = logging.getLogger(__name__)

State = Literal["hydrating", "ready", "failed"]
_NEAR_SECONDS, _FAR_SECONDS = 0.025, 1.0
"""How often a log is looked at that is on a disk, or on an object store."""
_TRY_AGAIN_SECONDS = 2.0
_LOOK_SECONDS = 0.5
_AGAIN_SECONDS = 10.0
"""A store that is damaged again so soon is not built anew at once."""
_AT_ONCE = 16


@dataclass
class LogFollower:
    """Runs from `start` to `close`. `changed` is called whenever another folder is to be served."""

    settings: Settings
    endpoint: Endpoint
    log: Log
    served: Path | None
    """The folder that answers requests; None while there is none that may."""
    changed: Callable[[], None]
    trouble: ProjectError | None = field(default=None, init=False)
    """Why it does not get on."""
    snapshot: tuple[int, datetime] | None = field(default=None, init=False)
    """Position and time of the newest snapshot that is known; position 0: there was none at that time."""
    _told: bool = field(default=True, init=False)
    """Whether readers know what is served."""
    _writer: StoreWriter | None = field(default=None, init=False)
    _folder: Path | None = field(default=None, init=False)
    """The folder that is being written: the one that is served, or one that will be when it has caught up."""
    _behind: tuple[int, float] = field(default=(0, 0.0), init=False)
    """Segments and seconds that are still to be applied."""
    _looked: float = field(default=0.0, init=False)
    _gave_up: float = field(default=float("-inf"), init=False)
    _wanted: Endpoint | None = field(default=None, init=False)
    _doubted: bool = field(default=False, init=False)
    _is_cut: bool = field(default=False, init=False)
    """Whether the log no longer has what comes after the store."""
    _stopping: threading.Event = field(default_factory=threading.Event, init=False)
    _lent: threading.Lock = field(default_factory=threading.Lock, init=False)
    """Held while somebody else uses the writer: it is not closed then."""

    def start(self) -> None:
        """Begin to follow."""
        name = f"{self.endpoint.name} v{self.endpoint.version}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End after the segment that is being applied."""
        self._stopping.set()

    def close(self, seconds: float | None = None) -> None:
        """Wait for that end, but no longer than this."""
        self._stopping.set()
        self._thread.join(seconds)

    @contextmanager
    def writer(self) -> Iterator[StoreWriter | None]:
        """The store of a follower that is well, for a snapshot. It is written meanwhile, but not replaced."""
        with self._lent:
            yield self._writer if self.trouble is None and self.served == self._folder else None

    @property
    def state(self) -> State:
        """One word for how it is."""
        if self.served is not None and self._told:
            return "ready"
        return "hydrating" if self.trouble is None else "failed"

    @property
    def position(self) -> int:
        """The newest segment that was applied."""
        writer = self._writer
        return writer.position if writer else 0

    def to_json(self) -> dict[str, Any]:
        """What the status says of it. Numbers of a store that is being written may be of two moments."""
        writer, trouble = self._writer, self.trouble
        position = writer.position if writer else None
        segments, seconds = self._behind
        saved = self.snapshot if self.snapshot and self.snapshot[0] else None
        return {
            "state": self.state,
            "version": self.endpoint.version,
            "position": position,
            "log_end": None if position is None else position + segments,
            "lag": {"segments": segments, "seconds": round(seconds, 3)},
            "rows": writer.rows if writer else None,
            "changes": writer.version if writer else None,
            "refused": writer.refused if writer else None,
            "snapshot": saved[0] if saved else None,
            "snapshot_age_s": round((datetime.now(UTC) - saved[1]).total_seconds(), 1) if saved else None,
            "error": trouble and {"code": trouble.code, "message": trouble.message, "hint": trouble.hint},
        }

    def check(self) -> None:
        """Serve nothing until the store was looked through: opening it does that."""
        self._doubted = True

    def redefine(self, endpoint: Endpoint) -> None:
        """Policies and words of a version may change."""
        self._wanted = endpoint

    def _run(self) -> None:
        pause = _FAR_SECONDS if isinstance(self.settings.log, ObjectPath) else _NEAR_SECONDS
        while not self._stopping.is_set():
            if not self._tend():
                self._stopping.wait(_TRY_AGAIN_SECONDS if self.trouble else pause)
        self._close_writer()

    def _tend(self) -> bool:
        """One step; whether the next should follow at once."""
        try:
            moved = self._step()
        except StoreDamagedError as damage:
            return self._give_up(str(damage))
        except LogCutError as cut:
            _LOG.warning("%s has to go on from a snapshot: %s", self.endpoint.name, cut)
            self._is_cut = True
            return True
        except LogDamagedError as damage:
            self._complain(_log_damaged(self.endpoint, str(damage)))
        except OSError as error:
            self._complain(_unreachable(self.settings, error))
        except ProjectError as error:
            self._complain(error)
        except Exception as error:  # one endpoint's trouble must not end the others
            self._complain(_fault(self.settings, self.endpoint, error))
        else:
            self.trouble = None
            return moved
        return False

    def _step(self) -> bool:
        if self._wanted is not None and self._wanted != self.endpoint:
            self.endpoint = self._wanted
            self._close_writer()
        if self._doubted:
            self._doubted = False
            self._serve(None)
            self._close_writer()
        writer = self._jump() if self._is_cut else self._writer or self._open()
        self._look_for_reports()
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
        """The store as it is, looked through; a new one when there is none."""
        version, log = self.endpoint.version, self.log.id
        home = self.settings.store / self.endpoint.name
        kept = self._folder or self.served or next(iter(folders.copies(home, version, log)), None)
        if kept is None:
            kept = begin(self.settings, self.endpoint, self.log, folders.new_folder(home, version, log))
        self._folder = kept
        self._heed_reports()
        self._writer = StoreWriter.open(kept, self.endpoint, events=self.settings.spec.events)
        return self._writer

    def _look_for_reports(self) -> None:
        """Readers check each row they give out: what they found wrong counts as much as what is found here."""
        now = time.monotonic()
        if now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            self._heed_reports()

    def _heed_reports(self) -> None:
        reason = None if self._folder is None else reported_damage(self._folder)
        if reason is not None:
            raise StoreDamagedError(reason)

    def _caught_up(self) -> None:
        """Serve the store that was built, instead of the one before it."""
        if self.served == self._folder and self._told:
            return
        old = self.served
        self._serve(self._folder)
        if old is not None and old != self._folder:
            folders.remove(old)

    def _serve(self, folder: Path | None) -> None:
        self.served, self._told = folder, False
        self.changed()
        self._told = True

    def _give_up(self, reason: str) -> bool:
        """Serve no more from the store that was being written, and begin a new one: at once, unless that was tried."""
        again = time.monotonic() - self._gave_up < _AGAIN_SECONDS
        self._gave_up = time.monotonic()
        _LOG.warning("the store of %s is damaged and built anew: %s", self.endpoint.name, reason)
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
        """The log was cut off ahead of the store: begin again with a snapshot, while the old store still answers."""
        behind = self._writer.position if self._writer else 0
        home = self.settings.store / self.endpoint.name
        target = folders.new_folder(home, self.endpoint.version, self.log.id)
        begin(self.settings, self.endpoint, self.log, target, after=behind)
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

    def _complain(self, trouble: ProjectError) -> None:
        if self.trouble is None or self.trouble.message != trouble.message:
            _LOG.warning("%s: %s", self.endpoint.name, trouble.message)
        self.trouble = trouble


def _log_damaged(endpoint: Endpoint, said: str) -> ProjectError:
    return ProjectError(
        "log-damaged",
        f"the log of endpoint '{endpoint.name}' v{endpoint.version} is damaged: {said}",
        hint="rows up to there are served; restore the file, or write the endpoint anew: headrace run --new-generation",
    )


def _store_damaged(endpoint: Endpoint, said: str) -> ProjectError:
    return ProjectError(
        "store-damaged",
        f"the store of endpoint '{endpoint.name}' is damaged again and again: {said}",
        hint="check the disk; it is built anew from snapshot and log",
    )


def _unreachable(settings: Settings, error: OSError) -> ProjectError:
    said = settings.redact(str(error.strerror or error))
    return ProjectError(
        "log-unreachable",
        f"{error.filename or settings.log} cannot be read: {said}",
        hint="rows up to here are served; following goes on by itself when it is back",
    )


def _fault(settings: Settings, endpoint: Endpoint, error: Exception) -> ProjectError:
    if os.strerror(errno.ENOSPC) in str(error):  # LMDB has no error of its own for it
        hint = "make room; following goes on by itself, and rows up to here are served"
        return ProjectError("disk-full", f"the disk of {settings.store} is full", hint=hint, exit_code=Exit.TRANSIENT)
    _LOG.exception("%s cannot be followed", endpoint.name)
    return ProjectError(
        "applier-failed",
        f"the log of endpoint '{endpoint.name}' cannot be applied: {type(error).__name__}: {error}",
        hint="this is a bug in headrace; please report it with what the applier printed",
    )
