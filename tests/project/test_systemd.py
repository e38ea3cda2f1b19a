"""The units of systemd, checked by `systemd-analyze`; `tests/e2e/test_systemd.py` runs one."""

import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from service.settings import Settings

FOLDER = Path(__file__).parents[2] / "deploy" / "systemd"
SERVICE, BULK = "ml-decoder.service", "ml-decoder-bulk@.service"
TEXTS = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("ml-decoder*")}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
@pytest.mark.parametrize(
    ("command", "names"),
    [("verify --man=no", TEXTS), ("security --offline=true --threshold=15", (SERVICE, BULK))],
)
def test_units_are_valid_and_little_exposed(
    tmp_path: Path, command: str, names: Iterable[str]
) -> None:
    for name in names:  # the program is not installed
        text = TEXTS[name].replace("/opt/ml-decoder/bin/ml-decoder", "/bin/true")
        (tmp_path / name).write_text(text)
        call = ["systemd-analyze", *command.split(), f"./{name}"]
        done = subprocess.run(call, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr


def test_services_share_user_state_and_settings_and_a_stop_waits_for_the_drain() -> None:
    shared = r"^(?:User|StateDirectory\w*|EnvironmentFile|Environment=ML_DECODER_\w+)=[^@\n]*$"
    service, bulk = (re.findall(shared, TEXTS[name], re.MULTILINE) for name in (SERVICE, BULK))
    assert service == bulk
    (seconds,) = re.findall(r"\nTimeoutStopSec=(\d+)\n", TEXTS[SERVICE])
    assert float(seconds) >= Settings.model_fields["drain_seconds"].default + 5
