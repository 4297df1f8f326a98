"""What deployments are made of (images, compose file, manifests) says nothing that the program does not understand."""

from __future__ import annotations

import fnmatch
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import parse

from tuner_service.settings import CHILDREN_READ, Settings, load_settings
from tuner_service.workers.process import CLOSE_SECONDS

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "deploy"
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE_TEXT = (ROOT / "docker-compose.yml").read_text()
SBATCH = (EXAMPLES / "worker.sbatch").read_text()
GIVEN = {"TUNER_POSTGRES_PASSWORD": "secret"}
READ_BELOW = {variable for variable, _, _ in CHILDREN_READ}
HEALTH = re.compile(r"http://127\.0\.0\.1:(\d+)(/\w+)'")


def interpolated(text: str) -> str:
    """As Compose does it, with what the user must give."""

    def value(found: re.Match[str]) -> str:
        name, kind, rest = found[1], found[2], found[3]
        if name in GIVEN:
            return GIVEN[name]
        assert kind == ":-", f"{name} has no default, and the user is not asked for it"
        return str(rest)

    return re.sub(r"\$\{(\w+)(:-|:\?)([^}]*)\}", value, text)


COMPOSE = yaml.safe_load(interpolated(COMPOSE_TEXT))
MANIFESTS = list(yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text()))


def check_environment(environment: dict[str, str]) -> Settings:
    """Every variable is a setting's, and has a value that it takes."""
    ours = {name: value for name, value in environment.items() if name.startswith("TUNER_")}
    settings = {"database_url": "postgresql://tuner:secret@postgres.example/tuner"}
    for name, value in ours.items():
        if name not in READ_BELOW:
            field = name.removeprefix("TUNER_").lower()
            assert field in Settings.model_fields, name
            settings[field] = value
    return load_settings(**settings)


def image_environment() -> dict[str, str]:
    return dict(
        re.findall(r"\b(TUNER_\w+)=(\S+)", "\n".join(re.findall(r"^ENV (?:.*\\\n)*.*$", DOCKERFILE, re.MULTILINE)))
    )


def stages() -> dict[str, str]:
    """Name of each stage → its text, with that of the stages that it is made from before it."""
    found: dict[str, str] = {}
    for base, name, body in re.findall(
        r"^FROM (\S+) AS (\S+)\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL
    ):
        found[name] = found.get(base, "") + body
    return found


def ours() -> Iterator[tuple[str, dict[str, Any]]]:
    """Services of the compose file that run this program."""
    yield from ((name, one) for name, one in COMPOSE["services"].items() if "build" in one)


@pytest.mark.parametrize(("name", "service"), list(ours()), ids=[name for name, _ in ours()])
def test_a_service_of_the_compose_file_is_one_that_the_program_can_be(name: str, service: dict[str, Any]) -> None:
    assert service["build"]["target"] in stages()
    parse(service["command"])
    settings = check_environment(image_environment() | service["environment"])
    assert settings.engine == "postgres"
    assert settings.artifacts_place == "database"
    for volume in service.get("volumes", ()):
        source, target = volume.split(":")
        assert source in COMPOSE["volumes"]
        assert target in image_environment().values()
    waited_for = service["depends_on"]
    expected = "service_healthy" if name == "migrate" else "service_completed_successfully"
    assert list(waited_for.values()) == [{"condition": expected}]
    assert set(waited_for) <= set(COMPOSE["services"])
    if service["command"][0] == "worker":
        grace_seconds = float(service["stop_grace_period"].removesuffix("s"))
        assert grace_seconds >= settings.drain_seconds + CLOSE_SECONDS


def test_the_compose_file_has_what_a_deployment_needs() -> None:
    services = COMPOSE["services"]
    assert set(services) == {"postgres", "migrate", "api", "worker-cpu", "worker-gpu"}
    assert services["worker-gpu"]["profiles"] == ["gpu"]
    (gpu,) = services["worker-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert gpu == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    assert services["postgres"]["healthcheck"]["test"][:2] == ["CMD", "pg_isready"]
    assert all(port.startswith("127.0.0.1:") for port in services["postgres"]["ports"])
    assert services["api"]["network_mode"] == "host", "the service binds the loopback that its users are on"
    assert "secret" not in COMPOSE_TEXT


def routes() -> set[str]:
    from tuner_service.api.routes import system

    return {route.path for route in system.router.routes}


def test_health_checks_ask_what_answers() -> None:
    texts = {
        "Dockerfile": DOCKERFILE,
        "docker-compose.yml": COMPOSE_TEXT,
        "kubernetes.yaml": (EXAMPLES / "kubernetes.yaml").read_text(),
    }
    worker_port = image_environment()["TUNER_METRICS_PORT"]
    for name, text in texts.items():
        asked = HEALTH.findall(text)
        assert asked, name
        for port, path in asked:
            assert path in routes(), name
            assert port == (worker_port if path == "/metrics" else "8000"), name
    assert parse(COMPOSE["services"]["api"]["command"])["port"] == 8000


def test_images_are_pinned_small_and_run_as_nobody() -> None:
    bases = [
        *re.findall(r"^ARG PYTHON_IMAGE=(\S+)", DOCKERFILE, re.MULTILINE),
        COMPOSE["services"]["postgres"]["image"],
    ]
    for base in bases:
        assert re.fullmatch(r"[a-z]+:\d+\.\d+(\.\d+)?-(slim-)?bookworm", base), "a version, and no registry's host"
    assert "FROM ${PYTHON_IMAGE}" in DOCKERFILE
    for target in ("service", "worker", "gpu-worker"):
        text = stages()[target]
        assert re.findall(r"^USER (\S+)", text, re.MULTILINE)[-1] == "10001:10001"
        assert re.search(r"^HEALTHCHECK ", text, re.MULTILINE)
        assert "gcc" not in text or target != "service"
    check_environment(image_environment())
    names = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for copied in " ".join(names).split():
        assert (ROOT / copied).exists()
        assert any(fnmatch.fnmatch(copied, pattern) for pattern in kept), f"{copied} is not sent to the builder"


def containers() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    for manifest in MANIFESTS:
        pod = manifest.get("spec", {}).get("template", {}).get("spec")
        for container in (pod or {}).get("containers", ()):
            yield manifest["metadata"]["name"], pod, container


def test_manifests_are_of_one_namespace_and_their_parts_fit() -> None:
    assert {one["kind"] for one in MANIFESTS} == {"Namespace", "ConfigMap", "Job", "Deployment", "DaemonSet"}
    assert {one["metadata"].get("namespace", one["metadata"]["name"]) for one in MANIFESTS} == {"tuner"}
    for one in MANIFESTS:
        if "selector" in one.get("spec", {}):
            assert one["spec"]["selector"]["matchLabels"] == one["spec"]["template"]["metadata"]["labels"]


@pytest.mark.parametrize(("name", "pod", "container"), list(containers()), ids=[name for name, _, _ in containers()])
def test_a_container_runs_what_there_is(name: str, pod: dict[str, Any], container: dict[str, Any]) -> None:
    image, _, _ = container["image"].partition(":")
    assert image.removeprefix("tuner-") in stages()
    assert container["image"] in {service["image"] for _, service in ours()}
    words = container["args"]
    parse(words)
    (config,) = [one for one in MANIFESTS if one["kind"] == "ConfigMap"]
    given = {one["name"]: one["value"] for one in container["env"] if "value" in one}
    settings = check_environment(image_environment() | config["data"] | given)
    assert {one["name"] for one in container["env"] if "valueFrom" in one} == {"TUNER_DATABASE_URL"}
    assert pod["securityContext"]["runAsUser"] == 10001
    assert pod["securityContext"]["runAsNonRoot"]
    assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in pod["volumes"]}
    writable = {one["mountPath"] for one in container["volumeMounts"]}
    assert {image_environment()["TUNER_DATA_DIR"], image_environment()["TUNER_LOCK_DIR"]} <= writable
    if words[0] == "worker":
        assert pod["terminationGracePeriodSeconds"] >= settings.drain_seconds + CLOSE_SECONDS
        probe = container["livenessProbe"]["httpGet"]
        assert (probe["path"], probe["port"]) == ("/metrics", settings.metrics_port)
        assert settings.metrics_host == "0.0.0.0", "the kubelet asks from outside"
    if words[0] == "serve":
        assert parse(words)["host"] == "127.0.0.1"


def test_the_batch_script_runs_what_there_is() -> None:
    subprocess.run(["bash", "-n", EXAMPLES / "worker.sbatch"], check=True)
    directives = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", SBATCH, re.MULTILINE))
    assert directives["signal"] == "B:TERM@60"
    environment = dict(re.findall(r"^export (TUNER_\w+)=(\S+)$", SBATCH, re.MULTILINE))
    settings = check_environment(environment)
    assert settings.drain_seconds + CLOSE_SECONDS <= 60, "it is killed so long after the signal"
    (line,) = re.findall(r"^exec tuner (.*)$", SBATCH, re.MULTILINE)
    words = parse(line.replace('"', "").split())
    assert words["device"] == ["nvidia"]
    assert words["compile_slots"] < int(directives["cpus-per-task"])


def test_docker_compose_takes_the_file(tmp_path: Path) -> None:
    if (
        shutil.which("docker") is None
        or subprocess.run(["docker", "compose", "version"], capture_output=True).returncode
    ):
        pytest.skip("there is no docker client with the compose plugin")
    (tmp_path / ".env").write_text("".join(f"{name}={value}\n" for name, value in GIVEN.items()))
    command = ["docker", "compose", "--env-file", tmp_path / ".env", "--profile", "gpu", "--file"]
    done = subprocess.run([*command, ROOT / "docker-compose.yml", "config", "--quiet"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
