"""MariaDB with a binlog of whole rows."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from headrace.testing.services.ports import HOST
from headrace.testing.services.service import Service

_LONGEST_SOCKET_PATH = 107


@dataclass(frozen=True)
class MariaDB(Service):
    """A MariaDB server; `root` needs no password on loopback, and the database is `test`."""

    kind: ClassVar[str] = "mariadb"
    packages: ClassVar[tuple[str, ...]] = ("mariadb-server-core", "mariadb-client-core")
    binary: ClassVar[str] = "mariadbd"

    def prepare(self, chosen: Mapping[str, int]) -> list[str]:
        """Options are given on the command line: no configuration file is read."""
        if not self.data.exists():
            self._initialise()
        socket = self.data / "s"
        options = {
            "datadir": self.data,
            "bind-address": HOST,
            "port": chosen["client"],
            "socket": socket if len(str(socket)) <= _LONGEST_SOCKET_PATH else f"s-{chosen['client']}",
            "server-id": 1,
            "log-bin": "binlog",
            "binlog-format": "ROW",
            "binlog-row-image": "FULL",
            "binlog-row-metadata": "FULL",
            "innodb-buffer-pool-size": "16M",
            "innodb-flush-log-at-trx-commit": 0,
            "default-time-zone": "+02:00",
        }
        words = [f"--{name}={value}" for name, value in options.items()]
        return [str(self.find_binary()), "--no-defaults", *_as_root(), *words]

    def _initialise(self) -> None:
        """Make the data directory; it appears whole or not at all."""
        unfinished = self.data.with_suffix(".new")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        program = shutil.which("mariadb-install-db") or "mariadb-install-db"
        options = ["--no-defaults", f"--datadir={unfinished}", "--auth-root-authentication-method=normal"]
        with self.log_file.open("ab") as log:
            done = subprocess.run(
                [program, *options, *_as_root()], stdout=log, stderr=subprocess.STDOUT, cwd=self.home, check=False
            )
        if done.returncode != 0:
            raise self.failure("mariadb-install-db failed")
        unfinished.rename(self.data)

    def answers(self) -> bool:
        """Whether it lets us in."""
        import pymysql

        try:
            pymysql.connect(host=HOST, port=self.port, user="root", connect_timeout=2).close()
        except (pymysql.Error, OSError):
            return False
        return True

    @property
    def env(self) -> dict[str, str]:
        """Where clients connect."""
        return {"MYSQL_URL": f"mysql://root@{self.address}/test"}


def _as_root() -> list[str]:
    """It refuses to run as root without an option."""
    return ["--user=root"] if os.geteuid() == 0 else []
