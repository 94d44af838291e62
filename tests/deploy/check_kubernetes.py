"""Checks manifests against the schemas of Kubernetes, and that Percheron's name each other rightly."""

import pathlib
import sys

import kubernetes_validate
import yaml

VERSIONS = ("1.29", "1.32")


def documents(folder):
    for path in sorted(folder.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            yield path.name, document


def check_schema(name, document):
    if document["apiVersion"].startswith("monitoring.coreos.com/"):
        return  # The operator's, not Kubernetes' own.
    for version in VERSIONS:
        kubernetes_validate.validate(document, version, strict=True)


def check_names(by_kind):
    service, stateful = by_kind["Service"], by_kind["StatefulSet"]
    template = stateful["spec"]["template"]
    labels = template["metadata"]["labels"]
    container = template["spec"]["containers"][0]
    assert stateful["spec"]["serviceName"] == service["metadata"]["name"]
    for selector in (service["spec"]["selector"], stateful["spec"]["selector"]["matchLabels"],
                     by_kind["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
                     by_kind["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"]):
        assert selector.items() <= labels.items(), selector
    assert by_kind["ServiceMonitor"]["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {port["name"]: port["port"] for port in service["spec"]["ports"]} == ports
    options = dict(argument.lstrip("-").split("=", 1) for argument in container["args"] if "=" in argument)
    assert options["metrics"].endswith(f":{ports['metrics']}"), options
    assert options["listen"].endswith(f":{ports['nodes']}") and options["join"].endswith(f":{ports['nodes']}"), options
    for probe in ("livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] in ports
    assert by_kind["ServiceMonitor"]["spec"]["endpoints"][0]["port"] in ports
    volumes = {volume["name"] for volume in template["spec"]["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in stateful["spec"]["volumeClaimTemplates"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    claims = {v["persistentVolumeClaim"]["claimName"] for v in template["spec"]["volumes"] if "persistentVolumeClaim" in v}
    assert claims == {by_kind["PersistentVolumeClaim"]["metadata"]["name"]}
    return options


def main():
    folder = pathlib.Path(sys.argv[1])
    by_kind = {}
    for name, document in documents(folder):
        check_schema(name, document)
        by_kind[document["kind"]] = document
    check_names(by_kind)
    print(f"{len(by_kind)} objects are valid for Kubernetes {', '.join(VERSIONS)}")


main()
