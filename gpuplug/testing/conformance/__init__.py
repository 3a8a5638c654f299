"""The conformance kit: what every driver must do, as tests that its author gets from one short file.

::

    import gpuplug_foogpu
    from gpuplug.testing import make_gpu
    from gpuplug.testing.conformance import Conformance

    class TestFoogpu(Conformance):
        driver = gpuplug_foogpu
        gpus = [make_gpu("foogpu", attributes={"foo_memory": "8"})]

pytest runs each check below as a test of its own. GPUs are those of the author and some that
hypothesis makes; they are always the same ones, so a check that fails does so every time. No file
is read and none is written. It needs ``pip install gpuplug[testing]``.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from unittest import SkipTest

from gpuplug.settings import Settings
from gpuplug.testing.conformance import containers, rules, strategies
from gpuplug.testing.conformance.asking import Answers, entry_point_of
from gpuplug.testing.conformance.base import SETTINGS, Checked, ask_quietly, seconds, watch
from gpuplug.testing.gpus import make_gpu

if TYPE_CHECKING:
    from gpuplug.model import Gpu
    from gpuplug.plugins.driver import LoadedDriver

__all__ = ["QUICK", "Conformance"]

QUICK: Final = 0.005
"""Seconds that all hooks together may take for one GPU."""
_TRIES: Final = 5


class Conformance(Checked):
    """Checks on one driver; a test class inherits them and says which driver it is."""

    # how it is packaged

    def test_it_is_loaded(self) -> None:
        """Its hooks have the right names, marks and arguments, and it declares nothing that cannot be."""
        self._loaded()

    def test_it_is_installed_under_an_entry_point(self) -> None:
        """Its distribution has an entry point in the group ``gpuplug``."""
        if self.name and not entry_point_of(self.driver):
            raise SkipTest(f"it is tested as {self.name}, without being installed")
        rules.installed(self.driver, entry_point_of(self.driver))

    def test_it_states_the_hooks_that_it_was_written_for(self) -> None:
        """Its module has ``GPUPLUG_HOOKS``, so that a gpuplug that is too old or too new can say so."""
        rules.states_version(self.driver)

    def test_it_imports_only_the_top_of_gpuplug(self) -> None:
        """What is below may be another tomorrow."""
        rules.imports_only_the_top(self.driver)

    def test_its_options_can_be_typed(self) -> None:
        """Each default can be written, read back, and is the same then."""
        rules.options_can_be_typed(self._loaded())

    # which GPUs it claims

    def test_it_claims_each_of_its_gpus(self) -> None:
        """The GPUs in ``gpus`` are advertised, those in ``declined`` are not."""
        rules.has_gpus(self.gpus)
        driver = self._loaded()
        for settings in SETTINGS:
            for gpu in self.gpus:
                rules.claims(gpu, self._ask(driver, gpu, settings).claim)
            for gpu in self.declined:
                rules.declines(gpu, self._ask(driver, gpu, settings).claim)

    def test_it_leaves_every_other_gpu_alone(self) -> None:
        """A GPU on a kernel driver that none of its own has is somebody else's."""
        driver = self._loaded()
        mine = {gpu.kernel_driver for gpu in self._own()}
        strange = [
            make_gpu(name, bus=bus, vendor=vendor, device=vendor)
            for name in strategies.OTHER_DRIVERS
            if name not in mine
            for bus, vendor in (("pci", 0xFFF0), ("platform", None))
        ]
        for gpu in [*strange, *self.others]:
            rules.leaves_alone(gpu, self._ask(driver, gpu, Settings()).claim)

    def test_its_resource_names_are_ones_that_kubernetes_takes(self) -> None:
        """``domain/name``, in the characters and lengths that the API allows."""
        self._for_each_answer(rules.resource_name)

    # how it answers

    def test_every_gpu_has_an_answer_of_the_right_type(self) -> None:
        """No hook raises, and each gives what its signature says, for any GPU."""
        self._for_each(lambda driver, gpu, settings: rules.nothing(self._ask(driver, gpu, settings)))

    def test_the_same_question_has_the_same_answer(self) -> None:
        """Asked twice, and after it was asked about other GPUs, it says the same."""
        before: list[tuple[Gpu, Settings, Answers]] = []

        def check(driver: LoadedDriver, gpu: Gpu, settings: Settings) -> None:
            first = self._ask(driver, gpu, settings)
            for asked, how, said in [*before[-2:], (gpu, settings, first)]:
                rules.same(asked, said, self._ask(driver, asked, how))
            before.append((gpu, settings, first))

        self._for_each(check)

    def test_it_changes_nothing_that_it_is_given(self) -> None:
        """GPU and settings are the same after it was asked."""

        def check(driver: LoadedDriver, gpu: Gpu, settings: Settings) -> None:
            mine = copy.copy(replace(gpu, attributes=dict(gpu.attributes), companions=dict(gpu.companions)))
            before = repr(mine), repr(settings)
            ask_quietly(driver, mine, settings)
            rules.unchanged(gpu, before, (repr(mine), repr(settings)))

        self._for_each(check)

    def test_it_opens_no_file_and_starts_nothing(self) -> None:
        """No file, no GPU node, no process, no connection: gpuplug reads for it."""
        self._for_each(lambda *asked: rules.no_effects(asked[1], watch(*asked).effects))

    def test_it_looks_at_nothing_but_what_it_is_given(self) -> None:
        """No file's state, no environment, no clock, no chance."""
        self._for_each(lambda *asked: rules.no_looks(asked[1], watch(*asked).looks))

    def test_it_prints_nothing(self) -> None:
        """Standard output is what programs read."""

        def check(driver: LoadedDriver, gpu: Gpu, settings: Settings) -> None:
            ask_quietly(driver, gpu, settings)
            rules.no_print(gpu, driver.notes)

        self._for_each(check)

    def test_it_answers_at_once(self) -> None:
        """All hooks together take milliseconds for a GPU at most; the best of several tries counts."""
        driver = self._loaded()
        for gpu in self._own():
            best = min(seconds(driver, gpu) for _ in range(_TRIES))
            rules.quick(gpu, best, QUICK)

    # what may be missing

    def test_a_gpu_without_its_attributes_has_an_answer(self) -> None:
        """An older kernel does not have them, and a container may not see them."""
        driver = self._loaded()
        for gpu in self._own():
            self._ask(driver, replace(gpu, attributes={}, companions={}), Settings())

    def test_attributes_of_any_text_have_an_answer(self) -> None:
        """A newer kernel may write something else into them."""
        driver = self._loaded()
        for gpu in self._own():
            for text in ("N/A", "-1", "0x", "9" * 400, "a b\nc d", *strategies.texts()):
                self._ask(driver, replace(gpu, attributes=dict.fromkeys(gpu.attributes, text)), Settings())

    # what a container gets

    def test_it_gives_no_node_of_another_gpu(self) -> None:
        """Of /dev/dri a container gets the nodes of the GPUs that it was given."""
        self._for_each_answer(containers.own_nodes_only)

    def test_it_gives_nothing_but_the_gpu(self) -> None:
        """A container gets nodes that gpuplug has seen, and nothing that opens the node to it."""
        companions = self._loaded().companion_nodes
        self._for_each_answer(lambda gpu, answers: containers.nothing_else(gpu, answers, companions))

    def test_it_gives_no_node_that_is_not_there(self) -> None:
        """A node that is not there fails the container's start."""
        companions = self._loaded().companion_nodes
        self._for_each_answer(lambda gpu, answers: containers.present_nodes_only(gpu, answers, companions))

    def test_it_gives_nodes_from_where_they_are(self) -> None:
        """A node's ``host_path`` has the prefix, its ``path`` has not."""
        self._for_each_answer(containers.host_paths)

    def test_it_gives_no_container_path_twice(self) -> None:
        """Two things cannot be in one place."""
        self._for_each_answer(containers.no_path_twice)

    def test_two_of_its_gpus_fit_into_one_container(self) -> None:
        """What it gives for one GPU is not in the place of what it gives for another."""
        driver = self._loaded()
        given = []
        for number, gpu in enumerate(self.gpus):
            for copy_ in range(2):
                other = containers.another(gpu, 2 * number + copy_)
                given.append((other, self._ask(driver, other, Settings())))
        containers.fit_together(given)

    def test_every_path_can_be_mounted(self) -> None:
        """Absolute, in its simplest form, and no longer than the kernel allows."""
        self._for_each_answer(containers.paths)

    def test_its_environment_variables_can_be_set(self) -> None:
        """Names that a shell takes, none of gpuplug's own, and no longer than the kernel allows."""
        self._for_each_answer(containers.variables)

    def test_its_environment_variables_do_not_depend_on_the_order_of_devices(self) -> None:
        """The kubelet gives them in any order, and shares of one GPU beside others."""
        driver = self._loaded()
        for own in self.gpus:
            pair = (containers.another(own, 0), containers.another(own, 1))
            claimed = [gpu for gpu in pair if self._ask(driver, gpu, Settings()).claimed]
            containers.any_order(driver, claimed)

    # what people read

    def test_every_verdict_has_its_reason(self) -> None:
        """An unhealthy or declined GPU says why, in one line."""
        self._for_each_answer(rules.reasons)
        driver = self._loaded()
        for gpu in self.declined:
            rules.reason_of_decline(gpu, self._ask(driver, gpu, Settings()).claim)
