"""Settings: valid, or one line that names the option and the value."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuplug.core.identity import MAX_DEVICE_ID, device_id
from gpuplug.core.sizes import LIST_LIMIT, offer_size
from gpuplug.errors import SettingError
from gpuplug.pciids import PciIds
from gpuplug.settings import (
    LOG_FORMATS,
    LOG_LEVELS,
    MAX_GPUS,
    MAX_SHARES,
    OPTIONS,
    Option,
    Settings,
    default,
    origins,
    resolve,
    spelt,
)

LONGEST_PCI_ADDRESS = "ffffffff:e1:1f.7"


def test_without_options_and_variables_the_defaults_hold() -> None:
    assert resolve({}, {}) == Settings()
    assert Settings().kubelet_dir == "/var/lib/kubelet/device-plugins"
    assert Settings().shared_dev_num == 1


def test_every_field_has_one_option_and_the_reverse() -> None:
    own = {field.name for field in fields(Settings)} - {"options"}  # those of the driver that is asked
    assert {option.field for option in OPTIONS} == own
    assert len({option.flag for option in OPTIONS}) == len(OPTIONS)


def test_a_default_written_out_gives_the_default() -> None:
    given_all = {option.field: default(option) for option in OPTIONS}
    assert resolve(given_all, {}) == Settings()


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("shared_dev_num", "1", 1),
        ("shared_dev_num", "+10", 10),
        ("shared_dev_num", "007", 7),
        ("shared_dev_num", str(MAX_SHARES), MAX_SHARES),
        ("prefix", "", ""),
        ("prefix", "/", ""),
        ("prefix", "//", ""),
        ("prefix", "/host//", "/host"),
        ("node_root", "/", "/"),
        ("node_root", "", ""),
        ("node_root", "/node/", "/node"),
        ("kubelet_dir", "/k/", "/k"),
        ("kubelet_dir", "/", "/"),
        ("resync", "1", 1.0),
        ("resync", "2.5", 2.5),
        ("resync", "86400", 86400.0),
        ("listen", "", ""),
        ("listen", ":9380", ":9380"),
        ("listen", "127.0.0.1:0", "127.0.0.1:0"),
        ("listen", "[::1]:65535", "[::1]:65535"),
        ("listen", "[fe80::1%eth0]:1", "[fe80::1%eth0]:1"),
        ("listen", "node-1.example.com:80", "node-1.example.com:80"),
        ("log_level", "DEBUG", "debug"),
        ("log_format", "JSON", "json"),
        ("allocation_policy", "Packed", "packed"),
        ("enable_monitoring", "T", True),
        ("enable_monitoring", "0", False),
        ("monitoring_mode", "single", "single"),
        ("bypath", "all", "all"),
        ("allow_ids", "0x56A0", PciIds(((None, 0x56A0),))),
        ("deny_ids", " 56a0, 8086:0x56a0,,0x56a0", PciIds(((None, 0x56A0), (0x8086, 0x56A0)))),
    ],
)
def test_an_option_and_its_variable_are_read_alike(field: str, text: str, value: object) -> None:
    variable = f"GPUPLUG_{field.upper()}"
    assert getattr(resolve({field: text}, {}), field) == value
    assert getattr(resolve({}, {variable: text}), field) == value


@pytest.mark.parametrize(
    ("field", "text"),
    [
        *(
            ("shared_dev_num", text)
            for text in ("0", "-1", "1.5", "1e9", "", " 1", "1\n", "x", "1_0", "٣", "²")
        ),
        ("shared_dev_num", str(MAX_SHARES + 1)),
        ("shared_dev_num", "9" * 5000),
        ("prefix", "host"),
        ("node_root", "host"),
        ("prefix", "./host"),
        ("prefix", "/a\0b"),
        ("prefix", "/\udcff"),
        ("kubelet_dir", ""),
        ("kubelet_dir", "kubelet"),
        ("kubelet_dir", "/\udcff"),
        *(("resync", text) for text in ("0", "0.99", "-1", "86401", "nan", "inf", "1e3", "", "60s", "٦٠")),
        *(
            ("listen", text)
            for text in (
                "9380",
                "localhost",
                "localhost:",
                ":65536",
                ":-1",
                ":http",
                "::1:9380",
                "[::1]",
                "[::g]:1",
                "[:::]:1",
                "[127.0.0.1:1",
                "127.0.0:1",
                "300.0.0.1:1",
                "-h:1",
                "a..b:1",
                f"{'a' * 64}.example:1",
                "a b:1",
                "http://h:1",
                "h:1/",
                " :1",
                ":1\n",
                ":٣",
            )
        ),
        *(("log_level", text) for text in ("", "loud", "critical")),
        *(("log_format", text) for text in ("", "xml")),
    ],
)
def test_a_bad_value_is_refused_in_one_line_with_option_and_value(field: str, text: str) -> None:
    flag = "--" + field.replace("_", "-")
    with pytest.raises(SettingError) as caught:
        resolve({field: text}, {})
    assert str(caught.value).startswith(f"{flag}: {text!r} is not ")
    assert "\n" not in str(caught.value)


def test_a_bad_variable_is_named_by_the_variable() -> None:
    with pytest.raises(SettingError, match=r"^GPUPLUG_SHARED_DEV_NUM: '0' is not from 1 to"):
        resolve({}, {"GPUPLUG_SHARED_DEV_NUM": "0"})


def test_the_option_wins_over_its_variable_even_if_that_is_bad() -> None:
    assert resolve({"shared_dev_num": "2"}, {"GPUPLUG_SHARED_DEV_NUM": "bad"}).shared_dev_num == 2


def test_an_empty_variable_counts_as_not_set() -> None:
    empty = {option.variable: "" for option in OPTIONS}
    assert resolve({}, empty) == Settings()
    assert origins({}, empty) == {}


def test_variables_that_a_service_of_our_name_brings_are_ignored() -> None:
    kubernetes = {"GPUPLUG_PORT": "tcp://10.0.0.1:80", "GPUPLUG_SERVICE_HOST": "10.0.0.1"}
    assert resolve({}, kubernetes) == Settings()


def test_the_origin_of_a_setting_is_the_option_before_the_variable() -> None:
    environ = {"GPUPLUG_PREFIX": "/a", "GPUPLUG_RESYNC": "5"}
    assert origins({"prefix": "/b"}, environ) == {"prefix": "--prefix", "resync": "GPUPLUG_RESYNC"}


@given(option=st.sampled_from(OPTIONS), text=st.text(max_size=12) | st.from_regex(r"/?[0-9a-z./]{0,9}"))
@example(option=OPTIONS[0], text="²")
def test_any_text_is_a_valid_setting_or_a_named_error(option: Option, text: str) -> None:
    try:
        settings = resolve({option.field: text}, {})
    except SettingError as error:
        named = str(error).startswith(f"{option.flag}: {text!r} ")
        assert named
        return
    assert 1 <= settings.shared_dev_num <= MAX_SHARES
    assert settings.prefix == "" or (settings.prefix[0] == "/" and settings.prefix[-1] != "/")
    assert settings.kubelet_dir.startswith("/")
    assert 1 <= settings.resync <= 86_400
    assert settings.log_level in LOG_LEVELS
    assert settings.log_format in LOG_FORMATS


def test_settings_are_spelt_as_the_options_that_give_them() -> None:
    chosen = resolve({"shared_dev_num": "10", "prefix": "/host"}, {"GPUPLUG_LOG_FORMAT": "json"})
    words = dict(word.split("=") for word in spelt(chosen).split(" "))
    assert words["--shared-dev-num"] == "10"
    assert words["--log-format"] == "json"
    fields_given = {flag.removeprefix("--").replace("-", "_"): value for flag, value in words.items()}
    assert resolve(fields_given, {}) == chosen


def test_the_most_shares_of_the_most_gpus_fit_into_a_list_and_one_more_does_not() -> None:
    longest = len(LONGEST_PCI_ADDRESS)
    assert (
        MAX_GPUS * offer_size(longest, MAX_SHARES)
        <= LIST_LIMIT
        < MAX_GPUS * offer_size(longest, MAX_SHARES + 1)
    )
    assert MAX_GPUS * offer_size(len("10000:e1:00.0"), MAX_SHARES) < LIST_LIMIT
    assert len(device_id(LONGEST_PCI_ADDRESS, MAX_SHARES - 1)) <= MAX_DEVICE_ID
