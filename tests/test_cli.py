"""Arguments: as ours are written and as Intel's plugin takes them; what is bad is one line and exit 2."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import shlex
import signal
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplug.cli import main, parse
from gpuplug.commands.usage import COMMANDS
from gpuplug.settings import MAX_SHARES, OPTIONS, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _keep_signal_handlers() -> Iterator[None]:
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, **environ: str) -> str:
    """Run, see that it ends with 2 and one line on standard error, and return that line."""
    assert main(arguments, environ) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("gpuplug: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    return err.removeprefix("gpuplug: ").removesuffix("\n")


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "1e9", str(MAX_SHARES + 1), "many", ""])
@pytest.mark.parametrize("form", ["--shared-dev-num={}", "-shared-dev-num={}", "--shared-dev-num {}"])
def test_a_bad_number_of_shares_is_named(capsys: pytest.CaptureFixture[str], value: str, form: str) -> None:
    line = refused(capsys, "serve", *form.format(value).split(" "))
    assert line.startswith(f"--shared-dev-num: {value!r} is not ")
    assert f"from 1 to {MAX_SHARES}" in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", "--bogus"], "unknown option or argument: '--bogus'"),
        (["serve", "--bogus=1\n2"], r"unknown option or argument: '--bogus=1\n2'"),
        (["serve", "extra"], "unknown option or argument: 'extra'"),
        (["serve", "--shared-dev"], "unknown option or argument: '--shared-dev'"),
        (["--bogus"], "unknown option or argument: '--bogus'"),
        (["-bogus=3"], "unknown option or argument: '--bogus=3'"),
        (["-v=x"], "-v: 'x' is not a whole number"),
        (["inspect", "-health-management"], "unknown option or argument: '--health-management'"),
        (["-allow-ids", "0x56a0,dg2"], "--allow-ids: '0x56a0,dg2' has 'dg2', which is no PCI device id"),
        (["-allow-ids=0x56a0", "-deny-ids=0x56a1"], "--allow-ids and --deny-ids exclude each other"),
        (["-enable-monitoring=maybe"], "--enable-monitoring: 'maybe' is not true or false"),
        (["-allocation-policy=best"], "--allocation-policy: 'best' is not one of none, balanced, packed"),
        (["-bypath"], "argument --bypath: expected one argument"),
        (["nosuch"], "argument COMMAND: invalid choice: 'nosuch'"),
        (["serv"], "argument COMMAND: invalid choice: 'serv'"),
        ([""], "argument COMMAND: invalid choice: ''"),
        (["a\nb"], r"argument COMMAND: invalid choice: 'a\nb'"),
        ([], "required: COMMAND"),
        (["serve", "--prefix"], "argument --prefix: expected one argument"),
        (["serve", "--prefix", "--resync"], "argument --prefix: expected one argument"),
        (
            ["serve", "--log-level", "loud"],
            "--log-level: 'loud' is not one of trace, debug, info, warning, error",
        ),
        (["serve", "--log-format", "xml"], "--log-format: 'xml' is not one of text, json"),
        (["serve", "--resync", "0"], "--resync: '0' is not a number of seconds"),
        (["serve", "--prefix", "host"], "--prefix: 'host' is not an absolute path"),
        (["serve", "--kubelet-dir="], "--kubelet-dir: '' is not an absolute path"),
        (["serve", "--keep"], "unknown option or argument: '--keep'"),
        (["demo", "--prefix", "/"], "unknown option or argument: '--prefix'"),
    ],
)
def test_what_cannot_be_understood_is_one_line_and_exit_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert words in refused(capsys, *arguments)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.variable)
def test_a_bad_variable_is_named(capsys: pytest.CaptureFixture[str], option: object) -> None:
    variable = getattr(option, "variable", "")
    assert refused(capsys, "serve", **{variable: "bad"}).startswith(
        (f"{variable}: 'bad' is not ", f"{variable}: 'bad' has 'bad', ")
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve", "--kubelet-dir", "{}"],
        ["serve", "--kubelet-dir={}"],
        ["--kubelet-dir={}"],
        ["-kubelet-dir={}"],
        ["-kubelet-dir", "{}"],
        ["-shared-dev-num=10", "-kubelet-dir={}", "-prefix", ""],
        ["-v=4", "-enable-monitoring", "-allocation-policy=packed", "-bypath=all", "-kubelet-dir={}"],
        ["-v", "2", "-logtostderr", "-health-management=true", "-temp-limit", "90", "-kubelet-dir={}"],
    ],
)
def test_arguments_are_taken_with_one_dash_and_without_a_command_too(
    capsys: pytest.CaptureFixture[str], short_path: Path, arguments: list[str]
) -> None:
    missing = str(short_path / "absent")
    line = refused(capsys, *(argument.format(missing) for argument in arguments))
    assert line == f"--kubelet-dir: {missing!r} is not there"


def test_a_variable_reaches_the_command(capsys: pytest.CaptureFixture[str], short_path: Path) -> None:
    missing = str(short_path / "absent")
    line = refused(capsys, "serve", GPUPLUG_PREFIX=missing)
    assert line == f"GPUPLUG_PREFIX: {missing!r} is not there"


def test_without_arguments_those_of_the_process_are_taken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["gpuplug", "serve"])
    monkeypatch.setenv("GPUPLUG_SHARED_DEV_NUM", "0")
    assert main() == 2
    assert "GPUPLUG_SHARED_DEV_NUM: '0'" in capsys.readouterr().err


@given(
    words=st.lists(st.text(max_size=8) | st.sampled_from(["serve", "-prefix", "--", "-x", "-1"]), max_size=4)
)
def test_no_arguments_end_in_anything_but_an_exit_code(words: list[str]) -> None:
    """``--log-level=bad`` sees to it that nothing is ever served."""
    try:
        assert main(["serve", "--log-level=bad", *words], {}) == 2
    except SystemExit as end:
        helped = end.code == 0 and any(word.startswith(("-h", "--h")) for word in words)
        assert helped


@pytest.mark.parametrize("arguments", [["--version"], ["-version"], ["--version", "serve"]])
def test_the_version_is_that_of_the_distribution(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main(arguments, {})
    assert capsys.readouterr().out == f"gpuplug {importlib.metadata.version('gpuplug')}\n"


@pytest.mark.parametrize("flag", ["--help", "-help", "-h"])
def test_help_names_the_commands(capsys: pytest.CaptureFixture[str], flag: str) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main([flag], {})
    out = capsys.readouterr().out
    assert all(command in out for command in COMMANDS)


def test_help_of_serve_names_every_option_its_variable_and_its_default(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["serve", "--help"], {})
    out = " ".join(capsys.readouterr().out.split())
    for option in OPTIONS:
        assert (option.flag in out) == option.serves
        assert (f"; {option.variable})" in out) == option.serves
    assert "(default: none; GPUPLUG_PREFIX)" in out
    assert "(default: 60.0; GPUPLUG_RESYNC)" in out


# the help of each command


@pytest.fixture
def help_of(capsys: pytest.CaptureFixture[str]) -> Callable[[str], str]:
    def get(command: str) -> str:
        with pytest.raises(SystemExit, match=r"^0$"):
            main([command, "--help"], {})
        return capsys.readouterr().out

    return get


EXAMPLES = [(name, typed) for name, command in COMMANDS.items() for typed, _ in command.examples]


@pytest.mark.parametrize(("command", "typed"), EXAMPLES, ids=[typed for _, typed in EXAMPLES])
def test_each_example_of_a_help_can_be_typed_as_it_stands(command: str, typed: str) -> None:
    program, *arguments = shlex.split(re.split("[|>]", typed)[0])
    assert program == "gpuplug"
    given = parse(arguments)
    assert given.pop("command") == command
    resolve({key: value for key, value in given.items() if isinstance(value, str)}, {})


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_has_its_examples_and_its_exit_codes(
    command: str, help_of: Callable[[str], str]
) -> None:
    assert COMMANDS[command].examples
    text = help_of(command)
    shown = text.partition("examples:\n")[2]
    for typed, told in COMMANDS[command].examples:
        assert f"\n  {typed}\n" in f"\n{shown}"
        assert told in " ".join(shown.split())
    codes = [int(code) for code in re.findall(r"^ {2,3}([0-9]{1,2}) {2}\S", shown, re.MULTILINE)]
    assert codes == sorted({2, *(code for code, _ in COMMANDS[command].exits)})


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_help_fits_the_terminal(
    command: str, width: int, help_of: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is typed is never broken, so that it can be copied."""
    monkeypatch.setenv("COLUMNS", str(width))
    text = help_of(command)
    typed = {f"  {one}" for one, _ in COMMANDS[command].examples}
    long = [line for line in text.splitlines() if len(line) > width and line not in typed]
    assert long == []
    assert "\x1b" not in text


def test_a_command_is_a_module_and_says_what_it_is_in_the_list(help_of: Callable[[str], str]) -> None:
    whole = " ".join(help_of("--help").split())
    for name, command in COMMANDS.items():
        assert callable(importlib.import_module(f"gpuplug.commands.{name}").run)
        assert f"{name} {command.summary}" in whole
