"""PostgreSQL with logical replication switched on."""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import signal
import stat
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from headrace.testing.services.ports import HOST
from headrace.testing.services.service import Service

_USER = "postgres"
_LONGEST_SOCKET_PATH = 107


@dataclass(frozen=True)
class Postgres(Service):
    """A PostgreSQL server that trusts everyone on loopback; superuser and database are both `postgres`."""

    kind: ClassVar[str] = "postgres"
    packages: ClassVar[tuple[str, ...]] = ("postgresql-15",)
    binary: ClassVar[str] = "postgres"
    # Fast shutdown: SIGTERM would wait for every client to leave.
    stop_signal: ClassVar[signal.Signals] = signal.SIGINT

    @classmethod
    def find_binary(cls) -> str | None:
        """Debian keeps each version's programs apart; the newest is taken."""
        programs = Path("/usr/lib/postgresql").glob(f"*/bin/{cls.binary}")
        newest = max(programs, key=lambda path: _number(path.parent.parent.name), default=None)
        return str(newest) if newest else shutil.which(cls.binary)

    def program(self, name: str) -> str:
        """Another program of the same version, such as psql."""
        return str(Path(str(self.find_binary())).with_name(name))

    @property
    def data(self) -> Path:
        """Inside home, unless root starts it where the postgres user may not go: then in that user's own folder."""
        if os.geteuid() != 0 or _anyone_may_enter(self.home):
            return self.home / "data"
        return Path(pwd.getpwnam(_USER).pw_dir) / f"headrace-{hashlib.sha256(bytes(self.home)).hexdigest()[:16]}"

    def prepare(self, chosen: Mapping[str, int]) -> list[str]:
        """Settings are given on the command line, so that those of the data directory stay the user's."""
        if not self.data.exists():
            self._initialise()
        socket_fits = len(f"{self.data}/.s.PGSQL.{chosen['client']}") <= _LONGEST_SOCKET_PATH
        settings = {
            "listen_addresses": HOST,
            "port": str(chosen["client"]),
            "unix_socket_directories": str(self.data) if socket_fits else "",
            "wal_level": "logical",
            "max_replication_slots": "20",
            "max_wal_senders": "20",
        }
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [*_as_user(), str(self.find_binary()), "-D", str(self.data), *words]

    def _initialise(self) -> None:
        """Make the data directory; it appears whole or not at all."""
        self.home.chmod(0o755)
        unfinished = self.data.with_suffix(".new")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        if os.geteuid() == 0:
            shutil.chown(unfinished, _USER, _USER)
        options = ["--username", _USER, "--auth", "trust", "--encoding", "UTF8", "--locale", "C.UTF-8", "--no-sync"]
        with self.log_file.open("ab") as log:
            done = subprocess.run(
                [*_as_user(), self.program("initdb"), "--pgdata", str(unfinished), *options],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd="/",
                check=False,
            )
        if done.returncode != 0:
            raise self.failure("initdb failed")
        unfinished.rename(self.data)

    def answers(self) -> bool:
        """What pg_isready says."""
        question = [self.program("pg_isready"), "--quiet"]
        return subprocess.run(question, env={**os.environ, **self.env}, check=False).returncode == 0

    @property
    def env(self) -> dict[str, str]:
        """A connection string, and the variables libpq reads by itself."""
        parts = {"PGHOST": HOST, "PGPORT": str(self.port), "PGUSER": _USER, "PGDATABASE": "postgres"}
        return {"POSTGRES_URL": f"postgresql://{_USER}@{self.address}/postgres", **parts}

    def remove(self) -> None:
        """Also the data that could not be in home."""
        super().remove()
        shutil.rmtree(self.data, ignore_errors=True)


def _as_user() -> list[str]:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return []
    return ["setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--init-groups", "--"]


def _anyone_may_enter(folder: Path) -> bool:
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in folder.parents)


def _number(version: str) -> float:
    return float(version) if version.replace(".", "", 1).isdigit() else 0.0
