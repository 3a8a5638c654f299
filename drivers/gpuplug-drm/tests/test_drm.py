"""Any DRM device by its kernel driver: which are claimed, under which name, and what is refused at start."""

from __future__ import annotations

import gpuplug_drm as driver
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplug import Gpu, Settings, is_resource_name

VIRTIO = Gpu("0000:00:02.0", "pci", "virtio_gpu", ())
MALI = Gpu("fd940000.gpu", "platform", "panfrost", ())
DEFAULTS = {option.name: option.default for option in driver.gpuplug_options()}


def settings(**options: str | tuple[str, ...]) -> Settings:
    return Settings(options={**DEFAULTS, **{key.replace("_", "-"): value for key, value in options.items()}})


def name(gpu: Gpu, chosen: Settings) -> str | None:
    return driver.gpuplug_resource_name(gpu, chosen)


@pytest.mark.parametrize("gpu", [VIRTIO, MALI, Gpu("vgem", "faux", "", ())])
def test_nothing_is_claimed_unless_its_kernel_driver_is_named(gpu: Gpu) -> None:
    assert name(gpu, settings()) is None
    assert name(gpu, settings(kernel_drivers=("v3d", "virtio-gpu", "panfrost2"))) is None


@pytest.mark.parametrize("gpu", [VIRTIO, MALI])
def test_what_is_named_is_claimed_on_any_bus(gpu: Gpu) -> None:
    chosen = settings(kernel_drivers=("virtio_gpu", "panfrost"))
    assert name(gpu, chosen) == f"gpuplug.dev/{gpu.kernel_driver}"


def test_the_template_makes_the_name() -> None:
    both = ("virtio_gpu", "panfrost")
    assert (
        name(VIRTIO, settings(kernel_drivers=both, resource="a.com/x-{kernel_driver}"))
        == "a.com/x-virtio_gpu"
    )
    assert name(MALI, settings(kernel_drivers=both, resource="a.com/gpu")) == "a.com/gpu"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        (" ", ()),
        ("virtio_gpu", ("virtio_gpu",)),
        ("v3d, panfrost,v3d", ("v3d", "panfrost")),
        ("rockchip-drm,vc4.0", ("rockchip-drm", "vc4.0")),
        ("k" * 32, ("k" * 32,)),
    ],
)
def test_kernel_drivers_are_named_with_commas_between_them(text: str, names: tuple[str, ...]) -> None:
    assert driver.kernel_drivers(text) == names


@pytest.mark.parametrize("text", [",", "v3d,", "v3d panfrost", "*", "_x", "x_", "k" * 33, "ü", "a/b", "\n"])
def test_what_cannot_be_a_kernel_driver_is_refused(text: str) -> None:
    if text == "\n":
        assert driver.kernel_drivers(text) == ()
        return
    with pytest.raises(ValueError, match="is not names of kernel drivers"):
        driver.kernel_drivers(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "gpu", "{kernel_driver}", "gpuplug.dev/", "gpuplug.dev/{driver}", "gpuplug.dev/{}", "/gpu"),
        *("a.com/_{kernel_driver}", "a.com/{kernel_driver}_", "a.com/a/b", "kubernetes.io/{kernel_driver}"),
        *("A.com/gpu", "a.com/{kernel_driver!r}", "a.com/{kernel_driver:>99}", "{kernel_driver}.com/{x}"),
        f"a.com/{'x' * 32}{{kernel_driver}}",
    ],
)
def test_a_template_that_makes_no_resource_name_is_refused_at_the_start(text: str) -> None:
    with pytest.raises(ValueError, match="does not make a resource name"):
        driver.template(text)


@given(
    start=st.text("ab0-_.", max_size=31),
    end=st.text("ab0-_.", max_size=31),
    kernel_driver=st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,30}[A-Za-z0-9])?", fullmatch=True),
)
def test_a_template_that_is_taken_makes_a_resource_name_of_every_kernel_driver_that_is(
    start: str, end: str, kernel_driver: str
) -> None:
    text = f"gpuplug.dev/{start}{{kernel_driver}}{end}"
    (taken,) = driver.kernel_drivers(kernel_driver)
    try:
        chosen = driver.template(text)
    except ValueError:
        return
    assert is_resource_name(driver.filled(chosen, taken))


def test_the_defaults_are_sound() -> None:
    assert driver.template(DEFAULTS["resource"]) == DEFAULTS["resource"]
    assert DEFAULTS["kernel-drivers"] == ()
