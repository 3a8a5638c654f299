"""Options of driver packages: declared by them, and read as our own are."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplug import DriverError, DriverOption, Settings, hookimpl
from gpuplug.errors import SettingError
from gpuplug.options import fault, flag, parse, variable, written
from gpuplug.plugins.chosen import configured, spelt_options
from gpuplug.plugins.loader import BrokenDriver, Loaded, LoadedDriver, from_modules
from tests.distributions import Distribution, Site
from tests.values import A, make_gpu

if TYPE_CHECKING:
    from pathlib import Path

    from gpuplug.testing import Machine

GPU = make_gpu(A)
ANY: Any = None


def positive(text: str) -> int:
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise ValueError("is not a number from 1 on")


def out_of_order(text: str) -> int:
    raise KeyError(text)


MEMORY = DriverOption("min-memory", int, 0, "GiB that a GPU must have")
MODE = DriverOption("mode", str, "all", "what to serve", choices=("all", "render"))
STRICT = DriverOption("strict", bool, default=False, help="refuse what is not known")
SCALE = DriverOption("scale", float, 1, "a factor")
WAYS = DriverOption("ways", positive, 4, "how many ways")
OPTIONS = (MEMORY, MODE, STRICT, SCALE, WAYS)


class Module:
    """A driver that names its resource after all that it was told."""

    def __init__(self, *options: DriverOption) -> None:
        self.declared = options or OPTIONS

    @hookimpl
    def gpuplug_options(self) -> tuple[DriverOption, ...]:
        return self.declared

    @hookimpl
    def gpuplug_resource_name(self, settings: Settings) -> str:
        return f"a.com/{'_'.join(f'{name}.{value}' for name, value in sorted(settings.options.items()))}"


def chosen(words: str = "", environ: dict[str, str] | None = None, **modules: object) -> Loaded:
    return configured(from_modules(modules or {"foo": Module()}), words.split(), environ or {})


def values(loaded: Loaded) -> dict[str, Any]:
    (driver,) = loaded.drivers
    return dict(driver.chosen)


DEFAULTS = {"min-memory": 0, "mode": "all", "strict": False, "scale": 1, "ways": 4}


def test_without_options_and_variables_the_defaults_hold() -> None:
    assert values(chosen()) == DEFAULTS


def test_a_driver_that_nobody_configured_has_its_defaults_too() -> None:
    (driver,) = from_modules({"foo": Module(MEMORY, MODE)}).drivers
    assert driver.resource_name(GPU, Settings()) == "a.com/min-memory.0_mode.all"


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        ("--foo-min-memory=8", {"min-memory": 8}),
        ("--foo-min-memory 8 --foo-mode render", {"min-memory": 8, "mode": "render"}),
        ("--foo-min-memory=-8", {"min-memory": -8}),
        ("--foo-min-memory=1 --foo-min-memory=2", {"min-memory": 2}),
        ("--foo-strict", {"strict": True}),
        ("--foo-strict --foo-ways 3", {"strict": True, "ways": 3}),
        ("--foo-strict true", {"strict": True}),
        ("--foo-strict False", {}),
        ("--foo-strict=0", {}),
        ("--foo-scale=2.5", {"scale": 2.5}),
    ],
)
def test_options_are_read_from_the_words_that_gpuplug_itself_does_not_know(
    words: str, changed: dict[str, object]
) -> None:
    assert values(chosen(words)) == {**DEFAULTS, **changed}


def test_a_variable_counts_where_the_option_is_not_given() -> None:
    environ = {"GPUPLUG_FOO_MIN_MEMORY": "8", "GPUPLUG_FOO_WAYS": "2", "GPUPLUG_FOO_MODE": ""}
    assert values(chosen("--foo-ways=9", environ)) == {**DEFAULTS, "min-memory": 8, "ways": 9}


@pytest.mark.parametrize(
    ("words", "environ", "line"),
    [
        ("--foo-min-memory=much", {}, "--foo-min-memory: 'much' is not a whole number"),
        ("--foo-min-memory=1.5", {}, "--foo-min-memory: '1.5' is not a whole number"),
        ("--foo-min-memory=", {}, "--foo-min-memory: '' is not a whole number"),
        ("--foo-strict=yes", {}, "--foo-strict: 'yes' is not true or false"),
        ("--foo-scale=nan", {}, "--foo-scale: 'nan' is not a number"),
        ("--foo-mode=some", {}, "--foo-mode: 'some' is not one of all, render"),
        ("--foo-ways=0", {}, "--foo-ways: '0' is not a number from 1 on"),
        ("--foo-mode=\udcff", {}, "--foo-mode: '\\udcff' is not text in UTF-8"),
        ("", {"GPUPLUG_FOO_WAYS": "x"}, "GPUPLUG_FOO_WAYS: 'x' is not a number from 1 on"),
        ("--foo-ways", {}, "--foo-ways: a value must follow it"),
        ("--foo-ways --foo-strict", {}, "--foo-ways: a value must follow it"),
        ("--foo-weighs=1", {}, "unknown option or argument: '--foo-weighs=1'"),
        ("--fo-ways=1", {}, "unknown option or argument: '--fo-ways=1'"),
        ("extra", {}, "unknown option or argument: 'extra'"),
        ("--foo-strict extra", {}, "unknown option or argument: 'extra'"),
    ],
)
def test_what_cannot_be_used_is_one_line_with_the_option_or_variable_and_the_value(
    words: str, environ: dict[str, str], line: str
) -> None:
    with pytest.raises(SettingError) as caught:
        chosen(words, environ)
    assert str(caught.value) == line


def test_a_type_that_fails_in_another_way_costs_its_driver_alone() -> None:
    bad = Module(DriverOption("way", out_of_order, 1, "which way"))
    loaded = chosen("--bad-way=x", {}, bad=bad, good=Module())
    assert [driver.name for driver in loaded.drivers] == ["good"]
    assert [one.reason for one in loaded.broken] == ["driver bad: option way raised KeyError: 'x'"]


def test_options_of_a_driver_that_is_not_loaded_keep_nobody_from_being_served() -> None:
    """An update that breaks one package must not end the process that has options for it."""
    loaded = from_modules({"foo": Module()})
    loaded = Loaded(loaded.drivers, (BrokenDriver("amd gpu", "cannot be imported"),), ("nouveau",))
    loaded = configured(loaded, ["--amd-gpu-x=1", "--nouveau-y", "2", "--foo-ways", "3", "--amd-gpu-z"], {})
    assert values(loaded)["ways"] == 3
    assert loaded.notes == tuple(
        f"option {word} is not used, for its driver is not loaded"
        for word in ("--amd-gpu-x", "--nouveau-y", "--amd-gpu-z")
    )


def test_what_holds_is_spelt_as_the_options_that_give_it() -> None:
    loaded = chosen("--foo-strict --foo-scale 2")
    words = spelt_options(loaded)
    assert words == "--foo-strict=true --foo-scale=2.0"
    assert values(chosen(words)) == values(loaded)


def test_hooks_get_the_values_of_their_own_driver_and_cannot_change_them() -> None:
    seen: list[Settings] = []

    class Curious(Module):
        @hookimpl
        def gpuplug_resource_name(self, settings: Settings) -> str:
            seen.append(settings)
            return "a.com/gpu"

    loaded = chosen("--b-ways=9", a=Curious(WAYS), b=Curious(WAYS), c=Curious())
    base = Settings(shared_dev_num=7)
    for driver in loaded.drivers:
        driver.resource_name(GPU, base)
        driver.resource_name(GPU, base)
    assert [settings.options["ways"] for settings in seen] == [4, 4, 9, 9, 4, 4]
    assert all(settings.shared_dev_num == 7 for settings in seen)
    with pytest.raises(TypeError):
        seen[0].options["ways"] = 1  # type: ignore[index]
    assert base.options == {}


# declarations


@pytest.mark.parametrize(
    ("option", "what"),
    [
        (DriverOption("Memory", int, 0, "x"), "its name is not made of lower-case words"),
        (DriverOption("", int, 0, "x"), "its name is not made of lower-case words"),
        (DriverOption("a_b", int, 0, "x"), "its name is not made of lower-case words"),
        (DriverOption(ANY, int, 0, "x"), "its name is not made of lower-case words"),
        (DriverOption("a", ANY, 0, "x"), "its type is not str, int, float, bool or a function"),
        (DriverOption("a", int, 0, ""), "its help is not one phrase"),
        (DriverOption("a", int, 0, "x\ny"), "its help is not one phrase"),
        (DriverOption("a", int, 0, ANY), "its help is not one phrase"),
        (DriverOption("a", int, "0", "x"), "its default '0' is not what its type gives"),
        (DriverOption("a", int, True, "x"), "its default True is not what its type gives"),
        (DriverOption("a", bool, 0, "x"), "its default 0 is not what its type gives"),
        (DriverOption("a", str, None, "x"), "its default None is not what its type gives"),
        (DriverOption("a", float, "1", "x"), "its default '1' is not what its type gives"),
        (DriverOption("a", str, "c", "x", ("a", "b")), "its default 'c' is not one of its choices"),
        (DriverOption("a", str, "a", "x", ANY), "its choices are not a tuple"),
    ],
)
def test_a_declaration_that_is_wrong_breaks_its_driver_with_the_reason(
    option: DriverOption, what: str
) -> None:
    assert fault(option).startswith(what)
    with pytest.raises(DriverError, match=f"^driver foo: option .*: {what}"):
        LoadedDriver("foo", Module(option))


@pytest.mark.parametrize("option", [*OPTIONS, DriverOption("a", positive, None, "x")])
def test_a_sound_declaration_has_no_fault(option: DriverOption) -> None:
    assert fault(option) == ""


def test_one_name_for_two_options_breaks_the_driver() -> None:
    with pytest.raises(DriverError, match="option 'ways': its name is used twice"):
        LoadedDriver("foo", Module(WAYS, WAYS))


def test_a_choice_that_cannot_be_compared_breaks_the_driver() -> None:
    class Stubborn:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("no")

        __hash__ = None  # type: ignore[assignment]

    with pytest.raises(DriverError, match="option 'a': RuntimeError: no"):
        LoadedDriver("foo", Module(DriverOption("a", positive, 1, "x", (Stubborn(),))))


def test_something_else_than_an_option_breaks_the_driver() -> None:
    with pytest.raises(DriverError, match="5 is not a DriverOption"):
        LoadedDriver("foo", Module(ANY or 5))  # type: ignore[arg-type]


def test_an_option_that_another_driver_has_breaks_the_later_one() -> None:
    loaded = from_modules({"amd": Module(DriverOption("gpu-x", int, 0, "x")),
                           "amd-gpu": Module(DriverOption("x", int, 0, "x"))})  # fmt: skip
    assert [driver.name for driver in loaded.drivers] == ["amd"]
    assert [one.reason for one in loaded.broken] == [
        "driver amd-gpu: its option --amd-gpu-x is one of driver amd"
    ]


def test_an_option_that_gpuplug_has_breaks_the_driver() -> None:
    loaded = from_modules({"log": Module(DriverOption("level", int, 0, "x"))})
    assert [one.reason for one in loaded.broken] == [
        "driver log: its option --log-level is one of gpuplug itself"
    ]


def test_names_of_flags_and_variables_are_made_of_any_name_of_a_driver() -> None:
    assert (flag("Foo.bar_2", MEMORY), variable("Foo.bar_2", MEMORY)) == (
        "--foo-bar-2-min-memory",
        "GPUPLUG_FOO_BAR_2_MIN_MEMORY",
    )


def test_the_help_shows_what_to_type_for_a_value() -> None:
    assert [option.metavar for option in OPTIONS] == ["N", "all|render", "BOOL", "NUMBER", "VALUE"]


@given(st.sampled_from(OPTIONS), st.text(max_size=8) | st.from_regex(r"-?[0-9.]{1,5}", fullmatch=True))
def test_any_text_is_a_value_or_is_refused_in_words(option: DriverOption, text: str) -> None:
    try:
        parse(option, text)
    except ValueError as error:
        words = str(error)
    else:
        words = ""
    if words:
        assert words.startswith("is not ")
        return
    value = parse(option, text)
    assert not isinstance(value, float) or math.isfinite(value)
    assert parse(option, written(value)) == value


def test_several_values_are_written_with_commas() -> None:
    assert (written(("b", "a")), written(frozenset("ba")), written([True, 1])) == ("b,a", "a,b", "True,1")


# the whole way, with an installed package


FOOGPU = Distribution(
    "foogpu",
    """
    from gpuplug import DriverOption, hookimpl

    @hookimpl
    def gpuplug_options():
        return [DriverOption("tier", str, "gold", "where 50% of it goes", choices=("gold", "tin"))]

    @hookimpl
    def gpuplug_resource_name(gpu, settings):
        return f"foo.com/{settings.options['tier']}" if gpu.kernel_driver == "foogpu" else None
    """,
)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path / "site")
    site.install(FOOGPU)
    return site


def test_an_installed_driver_has_its_options_in_the_help_on_the_command_line_and_in_the_environment(
    site: Site, machine: Machine
) -> None:
    machine.add_gpu(A, driver="foogpu")
    shown = " ".join(site.run("serve", "--help").stdout.split())
    assert "options of driver foogpu (foogpu 1.0):" in shown
    assert "--foogpu-tier gold|tin where 50% of it goes (default: gold; GPUPLUG_FOOGPU_TIER)" in shown
    prefix = f"--prefix={machine.root}"
    document = site.inspect(prefix, "-foogpu-tier", "tin")
    assert [resource["name"] for resource in document["resources"]] == ["foo.com/tin"]
    (package,) = [driver for driver in document["drivers"] if driver["name"] == "foogpu"]
    assert package["options"] == [{"option": "--foogpu-tier", "value": "tin"}]
    text = site.run("inspect", prefix, GPUPLUG_FOOGPU_TIER="tin").stdout
    assert "foo.com/tin" in text
    assert "foogpu 1.0; --foogpu-tier=tin" in text
    refused = site.run("serve", prefix, GPUPLUG_FOOGPU_TIER="lead")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == "gpuplug: GPUPLUG_FOOGPU_TIER: 'lead' is not one of gold, tin\n"


def test_drivers_are_chosen_and_left_out_by_name(site: Site, machine: Machine) -> None:
    machine.add_gpu(A, driver="foogpu")
    prefix = f"--prefix={machine.root}"
    document = site.inspect(prefix, "--no-driver", "xe", "--no-driver=i915,amdgpu,drm")
    assert [driver["name"] for driver in document["drivers"]] == ["foogpu"]
    assert document["advertised"]
    document = site.inspect(prefix, "--foogpu-tier=tin", GPUPLUG_DRIVER="xe,i915")
    assert [driver["name"] for driver in document["drivers"]] == ["i915", "xe"]
    assert not document["advertised"]
    assert document["problems"] == ["option --foogpu-tier is not used, for its driver is not loaded"]
    for command in ("serve", "inspect"):
        refused = site.run(command, prefix, "--driver=xe,nosuch")
        assert refused.returncode == 2
        assert (
            refused.stderr
            == "gpuplug: --driver: 'nosuch' is not installed; installed: amdgpu, drm, foogpu, i915, xe\n"
        )
