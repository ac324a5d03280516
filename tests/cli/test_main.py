"""What all commands share: help, errors, exit codes, pipes and terminals."""

from __future__ import annotations

import errno
import importlib
import inspect
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.cli.conftest import cpu_of_children

from headrace.cli import main as cli
from headrace.cli.terminal.output import printer
from headrace.core.errors import Exit

Run = Callable[..., Any]

_MAIN = "import sys; from headrace.cli.main import main; sys.exit(main())"


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    script = (
        "import sys; from headrace.cli.main import main; code = main(['--help']);"
        "print(sorted(sys.modules.keys() & {'pyspark', 'pyarrow', 'pydantic', 'rich', 'yaml', 'sqlglot'}));"
        "sys.exit(code)"
    )
    before = cpu_of_children()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    took = cpu_of_children() - before
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "[]"
    assert all(f"\n  {name} " in done.stdout for name in cli.all_commands())
    assert took < 1.0  # 0.15 s on a quiet machine; the promise is 0.5 s, and on a busy one a second costs more


@pytest.mark.parametrize("name", cli.all_commands())
def test_a_command_loads_and_answers_help(name: str, headrace: Run) -> None:
    ran = headrace(name, "--help")
    assert ran.code == 0
    assert f"Usage: headrace {name}" in ran.out


@pytest.mark.parametrize("name", cli.all_commands())
def test_every_command_takes_json(name: str) -> None:
    module = importlib.import_module(cli.all_commands()[name].module)
    app = getattr(module, "app", None)
    functions = [one.callback for one in app.registered_commands] if app else [getattr(module, name)]
    assert functions
    assert all("json" in inspect.signature(function).parameters for function in functions)


def test_without_arguments_it_shows_the_help(shell: Run) -> None:
    ran = shell()
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("Usage: headrace")


def test_version_option(headrace: Run) -> None:
    assert headrace("--version").out.startswith("headrace ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lnt"], "did you mean 'lint'?"),
        (["lint", "--nonsense"], "no such option: --nonsense"),
        (["init"], "missing argument 'DIR'"),
        (["services"], "missing command"),
        (["plan", "--dot", "--json"], "exclude each other"),
        (["lint", "--set"], "requires an argument"),
        (["lint", "a", "-p", "b"], "two projects"),
    ],
)
def test_wrong_usage_exits_2(arguments: list[str], said: str, headrace: Run) -> None:
    ran = headrace(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert "Traceback" not in ran.err


def test_wrong_usage_as_json(shell: Run) -> None:
    ran = shell("lint", "--nonsense", "--json")
    assert (ran.code, ran.out) == (2, "")
    error = ran.error["error"]
    assert error.keys() == {"code", "message", "where", "hint", "exit"}
    assert (error["code"], error["exit"], error["hint"]) == ("usage", 2, "see: headrace lint --help")


def _broken_command(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def version(json: bool = False) -> None:
        printer.hide(lambda text: text.replace("hunter2", "****"))
        raise error

    monkeypatch.setattr("headrace.cli.environment.version.version", version)


def test_an_unexpected_error_keeps_its_traceback_and_hides_secrets(
    monkeypatch: pytest.MonkeyPatch, headrace: Run
) -> None:
    _broken_command(monkeypatch, ZeroDivisionError("hunter2"))
    ran = headrace("version")
    assert ran.code == 1
    first, *rest = ran.err.splitlines()
    assert "please report it" in first
    assert rest[0].startswith("Traceback")
    assert rest[-1] == "ZeroDivisionError: ****"


def test_an_unexpected_error_as_json(monkeypatch: pytest.MonkeyPatch, headrace: Run) -> None:
    _broken_command(monkeypatch, ZeroDivisionError("hunter2"))
    ran = headrace("version", "--json")
    error = ran.error["error"]
    assert (ran.code, error["code"], error["message"]) == (1, "internal-error", "ZeroDivisionError: ****")
    assert error["traceback"].startswith("Traceback")
    assert "hunter2" not in ran.err


def test_a_broken_pipe_of_a_socket_is_not_taken_for_the_end_of_stdout(
    monkeypatch: pytest.MonkeyPatch, headrace: Run
) -> None:
    _broken_command(monkeypatch, BrokenPipeError("the broker went away"))
    ran = headrace("version")
    assert ran.code == 1
    assert "the broker went away" in ran.err


@pytest.mark.parametrize(
    ("number", "code", "exit_code"),
    [
        (errno.EACCES, "not-permitted", Exit.FAILED),
        (errno.EROFS, "not-permitted", Exit.FAILED),
        (errno.ENOSPC, "disk-full", Exit.TRANSIENT),
        (errno.ENAMETOOLONG, "bad-path", Exit.FAILED),
    ],
)
def test_what_the_system_refuses_is_no_bug(
    number: int, code: str, exit_code: int, monkeypatch: pytest.MonkeyPatch, headrace: Run
) -> None:
    _broken_command(monkeypatch, OSError(number, os.strerror(number), "/var/hunter2"))
    ran = headrace("version", "--json")
    error = ran.error["error"]
    assert (ran.code, error["code"], error["message"]) == (exit_code, code, f"/var/****: {os.strerror(number)}")
    assert error["hint"]


def test_closed_streams_are_no_reason_to_fail(project: Path) -> None:
    closed = f"exec '{sys.executable}' -c '{_MAIN}' \"$@\""
    for without, code in ((">&-", 0), ("2>&-", 0), (">&- 2>&- <&-", 0)):
        done = subprocess.run(["sh", "-c", f"{closed} {without}", "sh", "lint", str(project)], check=False)
        assert done.returncode == code, without


@pytest.mark.parametrize("error", [KeyboardInterrupt(), typer.Abort()])
def test_an_interrupt_is_silent(error: BaseException, monkeypatch: pytest.MonkeyPatch, headrace: Run) -> None:
    _broken_command(monkeypatch, error)
    ran = headrace("version")
    assert (ran.code, ran.out, ran.err) == (130, "", "")


def test_a_command_that_gives_something_back_is_a_bug(monkeypatch: pytest.MonkeyPatch, headrace: Run) -> None:
    def version() -> typer.Exit:
        return typer.Exit(1)

    monkeypatch.setattr("headrace.cli.environment.version.version", version)
    ran = headrace("version")
    assert ran.code == 1
    assert "raise typer.Exit(code)" in ran.err


def test_nobody_reading_stdout_is_quiet(project: Path) -> None:
    script = f"import time, sys; sys.stdin.readline(); {_MAIN}"
    process = subprocess.Popen(
        [sys.executable, "-c", script, "schema"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin
    assert process.stdout
    assert process.stderr
    process.stdout.close()
    process.stdin.write("go\n")
    process.stdin.close()
    assert process.stderr.read() == ""
    assert process.wait(30) == Exit.FAILED
    process.stderr.close()


def _on_terminal(arguments: list[str], environment: Mapping[str, str]) -> str:
    """What a command writes when both stdout and stderr are a terminal."""
    ours, theirs = pty.openpty()
    kept = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "TERM", "FORCE_COLOR")}
    with subprocess.Popen(
        [sys.executable, "-c", _MAIN, *arguments], stdout=theirs, stderr=theirs, env=kept | environment
    ) as process:
        os.close(theirs)
        written = bytearray()
        try:
            while chunk := os.read(ours, 4096):
                written += chunk
        except OSError:  # how Linux says that the other end was closed
            pass
        finally:
            os.close(ours)
    assert process.returncode in (0, 1)
    return written.decode()


def test_errors_have_colour_only_on_a_terminal_that_wants_it(
    write_project: Callable[[str, str], Path], headrace: Run
) -> None:
    arguments = ["lint", str(write_project("bad", "project: x\nstrems: {}\n"))]
    shown = _on_terminal(arguments, {"TERM": "xterm-256color"})
    assert "\x1b[" in shown
    assert "\x1b" not in _on_terminal(arguments, {"TERM": "xterm-256color", "NO_COLOR": "1"})
    assert "\x1b" not in _on_terminal(arguments, {"TERM": "dumb"})
    piped = headrace(*arguments).err
    assert "\x1b" not in piped
    assert re.sub(r"\x1b\[[0-9;]*m", "", shown).split() == piped.split()


def test_a_plan_is_a_tree_on_a_terminal(project: Path, headrace: Run) -> None:
    shown = _on_terminal(["plan", str(project)], {"TERM": "xterm-256color"})
    assert "└── " in shown
    assert "\x1b[" in shown
    assert "\x1b" not in headrace("plan", project).out


def test_a_character_the_terminal_cannot_show_is_no_error(project: Path, shell: Run) -> None:
    ran = shell("plan", project, PYTHONIOENCODING="ascii")
    assert ran.code == 0
    assert "flow big" in ran.out


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_completion_scripts(name: str, shell: Run) -> None:
    # without a terminal there is no shell to detect: Typer lets tests name it
    ran = shell("--show-completion", name, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert ran.code == 0
    assert "_HEADRACE_COMPLETE" in ran.out


def _completions(shell: Run, cwd: Path, *words: str) -> list[str]:
    line = " ".join(["headrace", *words])
    ran = shell(cwd=cwd, _HEADRACE_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words)))
    return ran.out.split()


def test_completion_of_commands_flows_and_profiles(project: Path, shell: Run) -> None:
    with (project / "headrace.yaml").open("a") as file:
        file.write("profiles: {busy: {}}\n")
    assert _completions(shell, project, "pl") == ["plan"]
    assert _completions(shell, project, "plan", "b") == ["big"]
    assert _completions(shell, project.parent, "plan", "shop", "b") == ["big"]
    assert _completions(shell, project, "lint", "--profile", "b") == ["busy"]
    (project / "headrace.yaml").write_text("flows: [")
    assert _completions(shell, project, "plan", "b") == []
