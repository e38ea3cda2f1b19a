"""Parses a Dockerfile into stages and their instructions."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Stage:
    """One `FROM base AS name` and the `(KEYWORD, rest)` instructions below it, in order."""

    name: str
    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)


def parse_dockerfile(text: str) -> list[Stage]:
    """Returns the stages; comments are dropped and continued lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    stages: list[Stage] = []
    for line in filter(str.strip, joined.splitlines()):
        keyword, rest = line.split(maxsplit=1)
        if keyword == "FROM":
            base, _, name = rest.split()
            stages.append(Stage(name, base))
        else:
            stages[-1].instructions.append((keyword, " ".join(rest.split())))
    return stages


def follow_stages(stages: list[Stage], target: str) -> list[tuple[str, str]]:
    """Returns the instructions that make `target`, those of its base stages first."""
    by_name = {stage.name: stage for stage in stages}
    stage = by_name[target]
    inherited = follow_stages(stages, stage.base) if stage.base in by_name else []
    return inherited + stage.instructions
