"""The audit of pinned packages: advisories fail it, a missing network does not."""

import subprocess
from pathlib import Path

import pytest
from pip_audit._dependency_source import RequirementSource

from constraints import audit

REPORT = (
    '{"dependencies": [{"name": "a", "version": "1.0", "vulns": [%s]}, '
    '{"name": "b", "version": "2", "vulns": []}, {"name": "c", "skip_reason": "x"}], "fixes": []}'
)
NO_NETWORK = "requests.exceptions.ConnectionError: no network"


def answer(monkeypatch: pytest.MonkeyPatch, *outputs: str) -> None:
    done = [
        subprocess.CompletedProcess[str]([], 1, each * (each[0] == "{"), f"Traceback\n{each}\n")
        for each in outputs
    ]
    monkeypatch.setattr(subprocess, "run", lambda *_args, **_options: done.pop(0))


@pytest.mark.parametrize("second", [REPORT % "", NO_NETWORK])
@pytest.mark.parametrize(
    ("advisory", "line"),
    [("", ""), ('{"id": "PYSEC-1", "fix_versions": ["1.1"]}', "a 1.0: PYSEC-1, fixed in 1.1")],
)
def test_advisory_fails_and_is_named(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    advisory: str,
    line: str,
    second: str,
) -> None:
    answer(monkeypatch, REPORT % advisory, second)
    with pytest.raises(SystemExit) as ended:
        audit.main()
    assert bool(ended.value.code) == bool(advisory)
    printed = capsys.readouterr().out
    assert line in printed
    assert ("skipped" in printed) == (second == NO_NETWORK)


def test_missing_pip_audit_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, NO_NETWORK, f"{audit.sys.executable}: No module named pip_audit")
    with pytest.raises(SystemExit, match=r"pip-audit failed: .* No module named pip_audit"):
        audit.main()


@pytest.mark.parametrize("files", audit.FILES)
def test_pip_audit_reads_the_files(files: list[Path]) -> None:
    # If not, the audit would be skipped.
    assert len(list(RequirementSource(files, no_deps=True, disable_pip=True).collect())) > 50
