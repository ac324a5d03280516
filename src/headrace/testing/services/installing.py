"""Getting what the services need: Debian packages when we may install them, jars through Ivy, programs built by Go."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from headrace.core.errors import ProjectError
from headrace.engine.spark.jars import fetch
from headrace.testing.services.service import Service, program_dir

Report = Callable[[str], None]

_POLICY = Path("/usr/sbin/policy-rc.d")
_APT = ("apt-get", "-o", "DPkg::Lock::Timeout=300", "--quiet", "--yes")


def install(services: Sequence[type[Service]], *, report: Report) -> dict[str, ProjectError]:
    """Install missing programs. Returns an error with the command to run for each that cannot be installed."""
    lacking = [service for service in services if service.problem() is not None]
    packages = sorted({package for service in lacking for package in service.packages})
    if packages and os.geteuid() == 0 and shutil.which("apt-get"):
        _install_packages(packages, report)
    for module in sorted({service.go_module for service in lacking if service.go_module}):
        _build(module, report)
    problems = {service.kind: _fetch_jars(service, report) or service.problem() for service in lacking}
    return {kind: problem for kind, problem in problems.items() if problem is not None}


# where Go's own archive is unpacked, which not every PATH has
_GO = "/usr/local/go/bin"


def _build(module: str, report: Report) -> None:
    """Build a program, which takes minutes, once. Without Go the service's own hint stays."""
    go = shutil.which("go") or shutil.which("go", path=_GO)
    if go is None:
        return
    report(f"building {module}")
    folder = program_dir()
    folder.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "GOBIN": str(folder)}
    done = subprocess.run([go, "install", module], env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        report("\n".join(done.stderr.strip().splitlines()[-3:]))


def _fetch_jars(service: type[Service], report: Report) -> ProjectError | None:
    if service.jar_set is None:
        return None
    try:
        fetch(service.jar_set, report=report)
    except ProjectError as error:
        return ProjectError("service-unavailable", f"{service.kind}: {error.message}", hint=error.hint)
    return None


def _install_packages(packages: Sequence[str], report: Report) -> None:
    """One package that cannot be had must not keep the others from being installed."""
    with _daemons_not_started():
        if not _all_known(packages):
            report("updating the list of Debian packages")
            _apt("update", report=report)
        for package in packages:
            report(f"installing {package}")
            _apt("install", "--no-install-recommends", package, report=report)


def _all_known(packages: Sequence[str]) -> bool:
    shown = subprocess.run(["apt-cache", "show", *packages], capture_output=True, check=False)
    return shown.returncode == 0


def _apt(*words: str, report: Report) -> None:
    done = subprocess.run(
        [*_APT, *words],
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        report("\n".join(done.stderr.strip().splitlines()[-3:]))


@contextmanager
def _daemons_not_started() -> Iterator[None]:
    """Debian starts a server as soon as it is installed, unless this policy forbids it."""
    if _POLICY.exists():
        yield
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink()
