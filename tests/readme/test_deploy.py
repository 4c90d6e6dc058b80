"""The recipes of docs/deploy are read as systemd, Compose and Kubernetes read them, and what they name is there."""

import argparse
import configparser
import re
import shlex
from urllib.parse import urlsplit

import pytest
import yaml

from django_delayq import conf
from django_delayq.management.commands.delayq_worker import Command
from django_delayq.worker.http import build_pages

from .blocks import ROOT

DEPLOY = ROOT / "docs" / "deploy"
#: What a worker takes at most to end after its drain, as docs/deployment.md says.
AFTER_DRAIN_SECONDS = 5
ANY_INTERFACE = "0.0.0.0"  # noqa: S104


def worker(arguments: list[str]) -> argparse.Namespace:
    """Return what the worker makes of a command line."""
    assert arguments[1:3] == ["manage.py", "delayq_worker"]
    parser = Command().create_parser("manage.py", "delayq_worker")
    options = parser.parse_args(arguments[3:])
    assert options.metrics
    return options


def is_served(path: str) -> bool:
    return path in build_pages(worker=None)  # the pages ask the worker only when they are read


def is_long_enough(seconds: float) -> bool:
    return seconds > conf.Config().drain_seconds + AFTER_DRAIN_SECONDS


def test_the_unit_of_systemd():
    unit = configparser.ConfigParser(interpolation=None, comment_prefixes="#")
    unit.optionxform = str
    unit.read_string((DEPLOY / "delayq@.service").read_text())
    service = unit["Service"]
    options = worker(shlex.split(service["ExecStart"].replace("%i", "1")))
    assert (options.processes, options.metrics[1]) == (4, 9811)
    assert is_long_enough(float(service["TimeoutStopSec"]))
    assert (service["KillMode"], service["Restart"]) == ("mixed", "always")
    assert unit["Install"]["WantedBy"] == "multi-user.target"


def test_compose():
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    ours = services["worker"]
    options = worker(shlex.split(ours["command"]))
    assert is_long_enough(float(ours["stop_grace_period"].removesuffix("s")))
    (address,) = re.findall(r"http://[^']+", ours["healthcheck"]["test"][-1])
    compile(ours["healthcheck"]["test"][-1], "healthcheck", "exec")
    asked = urlsplit(address)
    assert (asked.hostname, asked.port) == options.metrics
    assert is_served(asked.path)
    assert "--maxmemory-policy noeviction" in services["valkey"]["command"]
    assert set(ours["depends_on"]) <= set(services)
    assert ours["depends_on"]["migrate"]["condition"] == "service_completed_successfully"


def test_kubernetes():
    deployment = yaml.safe_load((DEPLOY / "kubernetes.yaml").read_text())
    template = deployment["spec"]["template"]
    assert deployment["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
    assert is_long_enough(template["spec"]["terminationGracePeriodSeconds"])
    (ours,) = template["spec"]["containers"]
    options = worker(ours["command"])
    (port,) = ours["ports"]
    assert options.metrics == (ANY_INTERFACE, port["containerPort"])
    for name, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz"), ("startupProbe", "/healthz")):
        assert ours[name]["httpGet"] == {"path": path, "port": port["name"]}
        assert is_served(path)


@pytest.mark.parametrize("path", sorted(DEPLOY.iterdir()), ids=lambda path: path.name)
def test_each_recipe_is_linked_from_the_page(path):
    assert f"(deploy/{path.name})" in (ROOT / "docs" / "deployment.md").read_text()
