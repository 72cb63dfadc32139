"""What is under deploy/ is valid, hangs together, and says what the command line understands."""

import json
import re
import shlex
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import typer.main
import yaml

from rstar2.cli.sandbox import app
from rstar2.config import recipe_text

pytestmark = pytest.mark.unit
ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES_VERSION = "1.35.0"
KUBERAY = json.loads((Path(__file__).parent / "kuberay_v1.json").read_text())
MANIFESTS = sorted(path.name for path in (DEPLOY / "kubernetes").glob("*.yaml"))


@cache
def objects(name: str) -> list[dict[str, Any]]:
    return [found for found in yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text()) if found]


def every_object() -> list[dict[str, Any]]:
    return [found for name in MANIFESTS for found in objects(name)]


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [found for found in every_object() if found["kind"] == kind]


def named(kind: str, name: str) -> dict[str, Any]:
    return next(found for found in of_kind(kind) if found["metadata"]["name"] == name)


def pod_templates() -> list[dict[str, Any]]:
    templates = [deployment["spec"]["template"] for deployment in of_kind("Deployment")]
    for cluster in of_kind("RayCluster"):
        spec = cluster["spec"]
        groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
        labels = {"ray.io/cluster": cluster["metadata"]["name"]}
        for group in groups:
            metadata = group["template"]["metadata"]
            templates.append(
                {**group["template"], "metadata": {**metadata, "labels": {**metadata["labels"], **labels}}}
            )
    return templates


def sandbox_node() -> dict[str, Any]:
    spec: dict[str, Any] = named("Deployment", "sandbox-node")["spec"]["template"]["spec"]
    return spec


def is_selected(template: dict[str, Any], selector: dict[str, Any]) -> bool:
    return selector.get("matchLabels", {}).items() <= template["metadata"]["labels"].items()


def options_of(verb: str) -> set[str]:
    command = typer.main.get_command(app).commands[verb]  # type: ignore[attr-defined]
    return {name for parameter in command.params for name in parameter.opts}


def test_the_files_are_those_that_the_documents_name() -> None:
    assert MANIFESTS == ["raycluster.yaml", "sandbox.yaml", "train-job.yaml"]


@pytest.mark.parametrize("name", MANIFESTS)
def test_every_object_has_its_schema(name: str) -> None:
    for found in objects(name):
        if found["apiVersion"] == "ray.io/v1":
            jsonschema.validate(found, KUBERAY[found["kind"]])
        else:
            kubernetes_validate.validate(found, KUBERNETES_VERSION, strict=True)


def test_rays_pods_are_pods() -> None:
    for template in pod_templates():
        pod = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {"name": "x", **template["metadata"]}}
        kubernetes_validate.validate(pod, KUBERNETES_VERSION, strict=True)


def test_a_mistake_would_be_noticed() -> None:
    deployment = json.loads(json.dumps(named("Deployment", "sandbox-node")))
    deployment["spec"]["replica"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, KUBERNETES_VERSION, strict=True)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"spec": {"workerGroupSpecs": [{}]}}, KUBERAY["RayCluster"])


def test_selectors_volumes_and_claims_find_what_they_name() -> None:
    templates = pod_templates()
    for deployment in of_kind("Deployment"):
        assert is_selected(deployment["spec"]["template"], deployment["spec"]["selector"])
    for service in of_kind("Service"):
        selected = [found for found in templates if is_selected(found, {"matchLabels": service["spec"]["selector"]})]
        ports = {port["name"] for found in selected for port in found["spec"]["containers"][0]["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    for policy in of_kind("NetworkPolicy"):
        assert any(is_selected(found, policy["spec"]["podSelector"]) for found in templates)
    claims = {claim["metadata"]["name"] for claim in of_kind("PersistentVolumeClaim")}
    for template in templates:
        volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
        mounted = {mount["name"] for container in template["spec"]["containers"] for mount in container["volumeMounts"]}
        assert mounted == volumes.keys()
        wanted = {
            volume["persistentVolumeClaim"]["claimName"]
            for volume in volumes.values()
            if len(volume) > 1 and "persistentVolumeClaim" in volume
        }
        assert wanted <= claims


def test_the_network_lets_the_trainer_to_the_gateway_and_the_nodes_to_nothing_else() -> None:
    trainers = [found for found in pod_templates() if "ray.io/cluster" in found["metadata"]["labels"]]
    node = named("Deployment", "sandbox-node")["spec"]["template"]
    gateway = named("Deployment", "sandbox-gateway")["spec"]["template"]
    to_gateway = named("NetworkPolicy", "sandbox-gateway")["spec"]
    of_node = named("NetworkPolicy", "sandbox-node")["spec"]
    allowed = [peer["podSelector"] for peer in to_gateway["ingress"][0]["from"]]
    assert trainers and all(any(is_selected(found, selector) for selector in allowed) for found in trainers)
    assert of_node["policyTypes"] == ["Ingress", "Egress"]
    [egress] = of_node["egress"]
    [peer] = egress["to"]
    assert is_selected(gateway, peer["podSelector"]) and peer.keys() == {"podSelector"}
    assert [port["port"] for port in egress["ports"]] == [8766]
    fence = named("NetworkPolicy", "rstar2-ray")["spec"]["ingress"][0]["from"]
    by_label = [peer["podSelector"] for peer in fence if "matchLabels" in peer["podSelector"]]
    assert not any(is_selected(node, selector) or is_selected(gateway, selector) for selector in by_label)


def test_no_pod_is_privileged_and_only_nodes_are_without_the_runtimes_filter() -> None:
    for template in pod_templates():
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] == 10001
        assert spec["automountServiceAccountToken"] is False
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False and context["capabilities"] == {"drop": ["ALL"]}
            assert "privileged" not in context
        is_unconfined = spec["securityContext"].get("seccompProfile") == {"type": "Unconfined"}
        assert is_unconfined == (spec is sandbox_node())


def test_what_containers_run_is_what_the_command_line_takes() -> None:
    run = [found["spec"]["template"]["spec"]["containers"][0] for found in of_kind("Deployment")]
    for container in run:
        program, group, verb, *rest = container["args"]
        assert (program, group) == ("rstar2", "sandbox")
        assert {argument for argument in rest if argument.startswith("--")} <= options_of(verb)
        known = {variable["name"] for variable in container["env"]}
        services = {"SANDBOX_GATEWAY_SERVICE_HOST", "SANDBOX_GATEWAY_SERVICE_PORT"}
        assert set(re.findall(r"\$\((\w+)\)", " ".join(rest))) <= known | services
        assert int(rest[rest.index("--port") + 1]) == container["ports"][0]["containerPort"]
    assert {container["args"][2] for container in run} == {"gateway", "serve"}


def test_every_token_comes_from_a_secret() -> None:
    for template in pod_templates():
        for container in template["spec"]["containers"]:
            [token] = [variable for variable in container["env"] if variable["name"] == "RSTAR2_SANDBOX_TOKEN"]
            assert token["valueFrom"]["secretKeyRef"] == {"name": "rstar2-sandbox", "key": "token"}
    for cluster in of_kind("RayCluster"):
        assert cluster["spec"]["authOptions"] == {"mode": "token", "secretName": "rstar2-ray"}
    assert not of_kind("Secret")


def test_the_job_runs_the_recipe_on_the_cluster_that_it_was_written_for() -> None:
    [job], [cluster] = of_kind("RayJob"), of_kind("RayCluster")
    assert job["spec"]["clusterSelector"] == {"ray.io/cluster": cluster["metadata"]["name"]}
    _, _, script = shlex.split(job["spec"]["entrypoint"])
    words = shlex.split(script.partition("exec ")[2])
    assert words[:2] == ["rstar2", "train"] and words[words.index("--cluster") + 1] == "auto"
    recipe = tomllib.loads(recipe_text(words[2]))
    [group] = cluster["spec"]["workerGroupSpecs"]
    assert group["replicas"] == recipe["cluster"]["num_nodes"]
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert int(limits["nvidia.com/gpu"]) == recipe["cluster"]["gpus_per_node"]
    gateway = named("Service", "sandbox-gateway")
    url = f"http://{gateway['metadata']['name']}:{gateway['spec']['ports'][0]['port']}"
    assert f"sandbox.base_url={url}" in words


def test_the_compose_file_hangs_together() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    assert compose.keys() == {"name", "services", "networks"}
    services = compose["services"]
    for service in services.values():
        assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        assert service["environment"]["RSTAR2_SANDBOX_TOKEN"].startswith("${RSTAR2_SANDBOX_TOKEN:?")
        assert set(service["networks"]) <= compose["networks"].keys()
        assert service["cap_drop"] == ["ALL"] and "no-new-privileges:true" in service["security_opt"]
        assert service["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")
        for name, wanted in service.get("depends_on", {}).items():
            assert wanted["condition"] == "service_healthy" and "healthcheck" in services[name]
        words = " ".join(service["command"]).replace("exec ", "").removeprefix("sh -c ").split()
        assert words[:2] == ["rstar2", "sandbox"]
        assert {word for word in words if word.startswith("--")} <= options_of(words[2])
    assert services["gateway"]["ports"] == ["127.0.0.1:8766:8766"] and "ports" not in services["node"]
    assert services["node"]["networks"] == ["sandbox"] and compose["networks"]["sandbox"]["internal"]


def test_the_image_is_made_of_files_that_exist() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    sources = [word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]]
    assert sources and all((ROOT / source).exists() for source in sources)
    assert [line for line in lines if line.startswith("USER")] == ["USER 10001:10001"]
