"""examples/monitoring: the alerts and the dashboard ask for what ``/metrics`` has, and for nothing else."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from gpuplug.model import RefusalCode
from tests.test_observer import LIES, OFFER, SICK, Watched, inventory
from tests.values import I915

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER: Final = Path(__file__).parent.parent / "examples/monitoring"
ALERTS: Final[dict[str, Any]] = yaml.safe_load((FOLDER / "alerts.yaml").read_text())
RULES: Final[list[dict[str, Any]]] = [rule for group in ALERTS["groups"] for rule in group["rules"]]
DASHBOARD: Final[dict[str, Any]] = json.loads((FOLDER / "dashboard.json").read_text())
TARGETS: Final = [(panel["title"], target) for panel in DASHBOARD["panels"] for target in panel["targets"]]
BY_PROMETHEUS: Final = {"job", "instance"}
"""The labels that a scrape adds."""
FREE: Final = BY_PROMETHEUS | {
    "resource",
    "gpu",
    "version",
    "python_version",
    "kernel_driver",
    "pci_id",
    "nodes",
}
"""The labels whose values are those of a cluster."""
DURATION: Final = re.compile(r"([0-9]+[smhd])+")


def served() -> dict[str, dict[str, set[str]]]:
    """Read, from the very text that is served, the labels of each name, and the values of each label."""
    watched = Watched()
    watched.observer.looked(inventory(OFFER, SICK, rejected=(LIES,)), 0)
    watched.observer.became(I915, streaming=True, phase="", reason="")
    found: dict[str, dict[str, set[str]]] = {"up": {}}
    for family in text_string_to_metric_families(watched.metrics.render().decode()):
        for sample in family.samples:
            labels = found.setdefault(sample.name, defaultdict(set))
            for label, value in sample.labels.items():
                labels[label].add(value)
    found["gpuplug_gpus_refused"]["reason"] = {code.value for code in RefusalCode}
    return found


SERVED: Final = served()


def parsed(expr: str) -> promql_parser.Expr:
    """Parse as Grafana would send it."""
    return promql_parser.parse(expr.replace("$__rate_interval", "5m").replace("$instance", ".*"))


def parts(expr: object) -> Iterator[object]:
    """Walk over an expression, all of it."""
    yield expr
    for name in ("lhs", "rhs", "expr", "param", "vector_selector"):
        inner = getattr(expr, name, None)
        if isinstance(inner, promql_parser.Expr):
            yield from parts(inner)
    for argument in getattr(expr, "args", None) or ():
        yield from parts(argument)


def selectors(expr: str) -> list[promql_parser.VectorSelector]:
    return [part for part in parts(parsed(expr)) if isinstance(part, promql_parser.VectorSelector)]


def names(expr: str) -> set[str]:
    return {str(selector.name) for selector in selectors(expr)}


def labels(expr: str) -> set[str]:
    """Name the labels that what an expression yields may have."""
    of = {label for name in names(expr) for label in SERVED[name]}
    return of | BY_PROMETHEUS


EXPRESSIONS: Final = [
    *[pytest.param(rule["expr"], id=rule["alert"]) for rule in RULES],
    *[pytest.param(target["expr"], id=f"{title} {target['refId']}") for title, target in TARGETS],
]


@pytest.mark.parametrize("expr", EXPRESSIONS)
def test_an_expression_asks_for_metrics_labels_and_values_that_are_served(expr: str) -> None:
    assert selectors(expr)
    for selector in selectors(expr):
        assert selector.name in SERVED, f"no metric {selector.name}"
        for matcher in selector.matchers.matchers:
            assert matcher.name in {*SERVED[selector.name], *BY_PROMETHEUS}, (
                f"{selector.name}: {matcher.name}"
            )
            if matcher.name not in FREE:
                asked = set(matcher.value.split("|"))
                assert asked <= SERVED[selector.name][matcher.name], f"{selector.name}: {matcher}"
    for part in parts(parsed(expr)):
        if isinstance(part, promql_parser.AggregateExpr) and part.modifier is not None:
            assert set(part.modifier.labels) <= labels(expr)


@pytest.mark.parametrize("expr", EXPRESSIONS)
def test_a_counter_is_asked_for_its_rate_and_a_histogram_by_its_buckets(expr: str) -> None:
    ranged = {
        str(part.vector_selector.name)
        for part in parts(parsed(expr))
        if isinstance(part, promql_parser.MatrixSelector)
    }
    for name in names(expr):
        assert name.endswith(("_total", "_bucket")) <= (name in ranged), f"{name} without a range"
        if name.endswith("_bucket"):
            assert "histogram_quantile" in expr
            assert re.search(r"by \([a-z, ]*\ble\b", expr)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_has_what_prometheus_takes_and_a_person_needs(rule: dict[str, Any]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"Gpuplug[A-Za-z]+", rule["alert"])
    assert "for" not in rule or DURATION.fullmatch(rule["for"])
    assert rule["labels"].keys() == {"severity"}
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert rule["annotations"].keys() == {"summary", "description"}
    for text in rule["annotations"].values():
        assert isinstance(text, str)
        assert "\n" not in text
        templates = re.findall(r"{{(.*?)}}", text)
        used = {t.strip().removeprefix("$labels.") for t in templates if t.strip() != "$value"}
        assert used <= labels(rule["expr"]), text
        assert text.count("{{") == text.count("}}") == len(templates)
    assert isinstance(parsed(rule["expr"]), promql_parser.BinaryExpr), "an alert compares"


def test_the_file_has_the_shape_of_rule_files() -> None:
    assert ALERTS.keys() == {"groups"}
    assert all(group.keys() == {"name", "rules"} for group in ALERTS["groups"])
    assert len({rule["alert"] for rule in RULES}) == len(RULES)


def test_the_readme_has_every_alert_with_its_severity() -> None:
    rows = re.findall(
        r"^\| (Gpuplug\w+) \| .+ \| (\w+) \|$", (FOLDER / "README.md").read_text(), re.MULTILINE
    )
    assert rows == [(rule["alert"], rule["labels"]["severity"]) for rule in RULES]


def test_the_dashboard_shows_every_metric_of_ours() -> None:
    shown = {name for _, target in TARGETS for name in names(target["expr"])}
    families = {re.sub(r"_(bucket|count|sum)$", "", name) for name in SERVED if name.startswith("gpuplug_")}
    assert {re.sub(r"_bucket$", "", name) for name in shown if name.startswith("gpuplug_")} == families


def test_the_panels_of_the_dashboard_have_ids_titles_and_places_of_their_own() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) == len(panels)
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        apart_in_x = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert apart_in_x or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


def test_the_dashboard_uses_the_variables_that_it_defines_and_labels_that_are_there() -> None:
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    text = json.dumps(DASHBOARD)
    assert set(re.findall(r"\$\{?([a-z]\w*)", text)) == variables
    assert {p["datasource"]["uid"] for p in DASHBOARD["panels"]} == {"${datasource}"}
    for _, target in TARGETS:
        assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels(target["expr"])
    (query,) = [v["query"] for v in DASHBOARD["templating"]["list"] if v["type"] == "query"]
    assert query == "label_values(gpuplug_build_info, instance)"
    assert "gpuplug_build_info" in SERVED


def test_a_typo_in_a_name_or_a_label_would_be_found() -> None:
    for wrong in ("gpuplug_devises > 0", 'gpuplug_devices{helth="x"}', 'gpuplug_devices{health="sick"}',
                  "sum by (resorce) (gpuplug_devices)", "gpuplug_ready{"):  # fmt: skip
        with pytest.raises((AssertionError, ValueError)):
            test_an_expression_asks_for_metrics_labels_and_values_that_are_served(wrong)
