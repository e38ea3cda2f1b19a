"""The Compose file, checked against the specification."""

import re
from pathlib import Path
from typing import Any

import yaml
from compose_spec import PyCompose

from service.settings import Settings
from tests.project.dockerfile import parse_dockerfile

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker-compose.yml"
TEXT = FILE.read_text(encoding="utf-8")
SINGLE = {"ml-decoder": "cpu", "ml-decoder-gpu": "gpu", "ml-decoder-openvino": "openvino"}
TARGETS = SINGLE | {"replica": "cpu"}
PROFILES = {profile: {name} for name, profile in SINGLE.items()}
PROFILES["scale"] = {"replica", "proxy", "postgres"}


def read_compose(text: str) -> dict[str, Any]:
    """The file as plain data; raises `ValueError` if it violates the specification."""
    # The parser supports neither YAML merge keys (`<<`), variables, nor a tag before a digest.
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)
    text = re.sub(r"@sha256:[0-9a-f]{64}$", "", text, flags=re.MULTILINE)
    plain = yaml.safe_dump(yaml.safe_load(text))
    content: dict[str, Any] = PyCompose.from_yaml(plain).to_dict()
    return content


STAGES = parse_dockerfile((ROOT / "Dockerfile").read_text(encoding="utf-8"))
COMPOSE = read_compose(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def test_profile_starts_its_services_at_port_8000_of_this_machine_alone() -> None:
    for profile, names in PROFILES.items():
        assert {name for name, it in SERVICES.items() if profile in it["profiles"]} == names
        ports = [port for name in names for port in SERVICES[name].get("ports", ())]
        assert [port.rpartition(":")[0] for port in ports] == ["127.0.0.1:8000"], profile


def test_service_is_a_stage_of_the_dockerfile_whose_settings_file_is_optional() -> None:
    drain = Settings.model_fields["drain_seconds"].default
    for name, target in TARGETS.items():
        service = SERVICES[name]
        assert service["build"]["target"] == target
        assert target in {stage.name for stage in STAGES}
        assert service["env_file"] == [{"path": "ml-decoder.env", "required": False}], name
        # That file cannot change the published port.
        given = yaml.safe_load(TEXT)["services"][name]["environment"]
        assert (given["ML_DECODER_HOST"], given["ML_DECODER_PORT"]) == ("0.0.0.0", "8000"), name
        assert float(service["stop_grace_period"].removesuffix("s")) >= drain + 5, name


def test_container_has_limits_and_cannot_change_itself_or_gain_privileges() -> None:
    held = Settings.model_fields["max_held_bytes"].default
    for name, service in SERVICES.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert re.fullmatch(r"\d+[gm]b", service["mem_limit"]), name
        assert 0 < service["pids_limit"] <= 1024, name
        if name in TARGETS:  # bodies, and as much again for pixels, labels and the model
            assert int(service["mem_limit"].removesuffix("gb")) * 1024**3 >= 2 * held, name


def test_proxy_substitutes_every_variable_of_the_tested_configuration() -> None:
    template = (ROOT / "deploy" / "nginx" / "default.conf.template").read_text(encoding="utf-8")
    proxy = SERVICES["proxy"]
    assert set(re.findall(r"\$\{(\w+)\}", template)) == set(proxy["environment"])
    assert proxy["volumes"] == ["./deploy/nginx:/etc/nginx/templates:ro"]
    published = proxy["ports"][0].rpartition(":")[2]
    assert proxy["environment"]["ML_DECODER_LISTEN"] == published
    exposed = dict(line for stage in STAGES for line in stage.instructions if line[0] == "EXPOSE")
    for servers in ("ML_DECODER_SERVERS", "ML_DECODER_LABEL_SERVERS"):
        assert f"server replica:{exposed['EXPOSE']} resolve" in proxy["environment"][servers]
