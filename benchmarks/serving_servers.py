"""The measured servers: a serve node, the minimal Go server and Redis, each with the same rows."""

from __future__ import annotations

import argparse
import json
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psutil

from benchmarks import serving_load as load
from benchmarks.serving_rows import ENDPOINT, lines
from headrace.testing.services import Redis as RedisServer

_START_SECONDS = 300.0
_PER_PIPELINE = 10_000


class _Process:
    """A server process that ends with the benchmark."""

    process: subprocess.Popen[bytes]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    @property
    def processes(self) -> list[psutil.Process]:
        one = psutil.Process(self.process.pid)
        return [one, *one.children(recursive=True)]

    def first_line(self) -> str:
        """The line that it prints when it is ready."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], _START_SECONDS)[0]:
            raise SystemExit(f"{self.process.args!r} has not answered after {_START_SECONDS:.0f} s")
        line = self.process.stdout.readline().decode().strip()
        if not line:
            raise SystemExit(f"{self.process.args!r} ended before it answered")
        return line


class Node(_Process):
    """`headrace serve`, after its applier has applied the log."""

    def __init__(self, folder: Path, log: Path, options: argparse.Namespace) -> None:
        folder.mkdir()
        serve = {
            "port": 0,
            "grpc_port": None if options.no_grpc else 0,
            "workers": options.workers,
            "log": str(log),
            "store": str(folder / "store"),
        }
        project = {"project": "bench", "serve": serve}
        (folder / "headrace.yaml").write_text(json.dumps(project))
        command = [sys.executable, "-m", "headrace", "serve", "--project", str(folder), "--json"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        try:
            addresses = json.loads(self.first_line())
            self.url, self.grpc_address = str(addresses["http"]), str(addresses["grpc"])
            self._await_rows(options.rows)
        except BaseException:
            self.__exit__()
            raise

    def _await_rows(self, rows: int) -> None:
        until = time.monotonic() + _START_SECONDS
        while self._rows() != rows:
            if time.monotonic() > until:
                raise SystemExit(f"the node has {self._rows()} rows after {_START_SECONDS:.0f} s")
            time.sleep(0.5)

    def _rows(self) -> int | None:
        with suppress(OSError, ValueError):
            endpoint: dict[str, Any] = json.loads(load.fetch(f"{self.url}/health"))["endpoints"][ENDPOINT.name]
            return endpoint.get("rows")
        return None

    @property
    def api(self) -> list[psutil.Process]:
        """The REST processes."""
        return self._named("headrace.serve.rest.api")

    @property
    def grpc(self) -> list[psutil.Process]:
        """The gRPC processes."""
        return self._named("headrace.serve.grpc")

    def _named(self, module: str) -> list[psutil.Process]:
        heads = [one for one in psutil.Process(self.process.pid).children() if module in one.cmdline()]
        return [process for head in heads for process in (head, *head.children(recursive=True))]


class Go(_Process):
    """The minimal server of benchmarks/peers/goserver."""

    def __init__(self, folder: Path, rows: int) -> None:
        folder.mkdir()
        program, data = folder / "goserver", folder / "rows.db"
        source = Path(__file__).parent / "peers" / "goserver"
        subprocess.run([load.go(), "build", "-o", str(program), "."], cwd=source, check=True)
        with subprocess.Popen([program, "fill", data], stdin=subprocess.PIPE) as filling:
            assert filling.stdin is not None
            filling.stdin.writelines(b"%d\t%s\n" % one for one in lines(rows))
        if filling.returncode:
            raise SystemExit("the Go server could not be filled")
        self.process = subprocess.Popen([program, "serve", data, "127.0.0.1:0"], stdout=subprocess.PIPE)
        self.url = f"http://{self.first_line()}"


class Redis:
    """Redis with each row as a string."""

    def __init__(self, folder: Path, rows: int) -> None:
        self._service = (
            RedisServer(home_dir=folder) if "home_dir" in RedisServer.__dataclass_fields__ else RedisServer()
        )
        self._rows = rows

    def __enter__(self) -> Redis:
        import redis

        self._service.__enter__()
        pipeline = redis.Redis(port=self._service.port).pipeline(transaction=False)
        for number, one in lines(self._rows):
            # the format of random numbers in redis-benchmark
            pipeline.set(f"key:{number - 1:012d}", one)
            if number % _PER_PIPELINE == 0:
                pipeline.execute()
        pipeline.execute()
        return self

    def __exit__(self, *_: object) -> None:
        self._service.remove()

    @property
    def port(self) -> int:
        """Its address."""
        return self._service.port

    @property
    def processes(self) -> list[psutil.Process]:
        listens = (one for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN)
        return [psutil.Process(next(one.pid for one in listens if one.laddr.port == self.port and one.pid))]
