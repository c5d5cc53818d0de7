"""The manifests in ``gateway/deploy``: valid by the published schemas, and true to what the product does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from compose_spec import PyCompose

from gateway import Gateway, ScriptedModel
from gateway.config import Settings, canonical
from gateway.engine import Agent

DEPLOY = Path(__file__).resolve().parents[2] / "gateway" / "deploy"
ROOT = DEPLOY.parents[1]


def _kubernetes() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))


def _kind(kind: str) -> dict[str, Any]:
    found = [document for document in _kubernetes() if document["kind"] == kind]
    assert len(found) == 1
    return found[0]


def _compose() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return content


@pytest.fixture(scope="module")
def paths() -> set[str]:
    """Give the HTTP paths that the product serves."""
    gateway = Gateway(Agent(ScriptedModel()))
    return {getattr(route, "path", "") for route in gateway.asgi.routes}


@pytest.mark.parametrize("document", _kubernetes(), ids=lambda document: document["kind"])
def test_kubernetes_accepts_each_document(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def test_a_wrong_field_is_noticed() -> None:
    document = _kind("Deployment")
    document["spec"]["replica"] = 3
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def test_compose_accepts_the_file() -> None:
    spec = PyCompose.from_yaml((DEPLOY / "compose.yaml").read_text()).to_spec()
    assert set(spec.services or {}) == {"gateway", "balancer", "postgres", "redis"}


def _pod() -> dict[str, Any]:
    pod: dict[str, Any] = _kind("Deployment")["spec"]["template"]["spec"]
    return pod


def test_every_setting_named_exists() -> None:
    names = set(_kind("ConfigMap")["data"]) | {entry["name"] for entry in _pod()["containers"][0]["env"]}
    names |= set(_compose()["services"]["gateway"]["environment"])
    names |= set(re.findall(r"(GATEWAY_[A-Z_]+)=", (DEPLOY / "Dockerfile").read_text()))
    assert [name for name in sorted(names) if canonical(name.removeprefix("GATEWAY_")) is None] == []


def test_the_probes_ask_what_is_served(paths: set[str]) -> None:
    container = _pod()["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        probe = container[name]["httpGet"]
        assert probe["path"] in paths
        assert ports[probe["port"]] == int(_kind("ConfigMap")["data"]["GATEWAY_PORT"])
    # Liveness must not depend on the database: restarting every node would not bring it back.
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert "/readyz" in str(_compose()["services"]["gateway"]["healthcheck"]["test"])


def test_a_pod_has_time_to_drain() -> None:
    data = _kind("ConfigMap")["data"]
    command = _pod()["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert command[0] == "sleep"
    wanted = int(command[1]) + float(data["GATEWAY_DRAIN"]) + float(data["GATEWAY_SEND_TIMEOUT"])
    assert _pod()["terminationGracePeriodSeconds"] >= wanted + 5


def test_compose_has_time_to_drain() -> None:
    service = _compose()["services"]["gateway"]
    period = int(service["stop_grace_period"].removesuffix("s"))
    assert period >= float(service["environment"]["GATEWAY_DRAIN"]) + Settings().send_timeout + 5


def test_the_balancers_outwait_two_heartbeats() -> None:
    heartbeat = float(_kind("ConfigMap")["data"]["GATEWAY_HEARTBEAT_S"])
    annotations = _kind("Ingress")["metadata"]["annotations"]
    assert float(annotations["nginx.ingress.kubernetes.io/proxy-read-timeout"]) > 2 * heartbeat
    found = re.search(r"proxy_read_timeout (\d+)s", _compose()["configs"]["balancer"]["content"])
    assert found is not None
    assert float(found[1]) > 2 * Settings().heartbeat_s


def test_a_disruption_leaves_nodes_and_can_happen() -> None:
    replicas = _kind("Deployment")["spec"]["replicas"]
    assert 1 <= _kind("PodDisruptionBudget")["spec"]["minAvailable"] < replicas


def test_the_selectors_find_the_pods() -> None:
    labels = _kind("Deployment")["spec"]["template"]["metadata"]["labels"]
    selectors = [
        _kind("Deployment")["spec"]["selector"]["matchLabels"],
        _kind("Service")["spec"]["selector"],
        _kind("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        *(entry["labelSelector"]["matchLabels"] for entry in _pod()["topologySpreadConstraints"]),
    ]
    for selector in selectors:
        assert selector.items() <= labels.items()
    target = _kind("Ingress")["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]
    assert target["name"] == _kind("Service")["metadata"]["name"]
    assert target["port"]["name"] in {port["name"] for port in _kind("Service")["spec"]["ports"]}


def test_no_secret_is_written_down() -> None:
    for entry in _pod()["containers"][0]["env"]:
        assert "secretKeyRef" in entry["valueFrom"]
    environment = _compose()["services"]["gateway"]["environment"]
    assert environment["GATEWAY_TOKEN"].startswith("${GATEWAY_TOKEN:?")
    assert "${POSTGRES_PASSWORD:?" in environment["GATEWAY_STORE"]


def test_the_image_is_built_from_what_is_there() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
    extras = re.findall(r"'\.\[(.+)\]'", text)[0].split(",")
    import tomllib

    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras) <= set(known)
