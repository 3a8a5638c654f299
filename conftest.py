"""For all tests here: gpuplug's own pytest plugin, loaded late enough for its coverage to be measured."""

pytest_plugins = ["gpuplug.testing.plugin"]
