"""Writes requirements/*.txt: for every package named in requirements/*.in, the versions installed in this interpreter.

Run it with the Python of an environment in which everything works; name files (sglang, vllm) to write those instead of
the main ones. Each file is complete by itself: what its names need in turn is in it too. Packages without an installer
record came inside a ROS wheel and are skipped.
"""

from importlib import metadata
from pathlib import Path
import sys

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REQUIREMENTS = Path(__file__).resolve().parent.parent / 'requirements'
WITHOUT_DEPENDENCIES = {'models'}
LEAVES = {'sglang', 'torchvision'}  # they ask for more than is installed: see sglang.in
LEFT_OUT = {'vllm': {'torchaudio', 'torchcodec', 'torchvision'}}  # see vllm.in
ORDER = ('ros', 'runtime', 'models', 'dev')


def installed() -> dict[str, metadata.Distribution]:
    """The packages that pip installed here, by canonical name."""
    found = {}
    for distribution in metadata.distributions():
        if (distribution.read_text('INSTALLER') or '').strip():
            found[canonicalize_name(distribution.metadata['Name'])] = distribution
    return found


def wanted(name: str) -> list[Requirement]:
    lines = (REQUIREMENTS / f'{name}.in').read_text(encoding='utf-8').splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith('#')]


def needs(distribution: metadata.Distribution, extras: set[str]) -> list[Requirement]:
    """What `distribution` with `extras` requires on this interpreter."""
    requirements = [Requirement(text) for text in distribution.requires or []]
    environments = [{'extra': extra} for extra in sorted(extras | {''})]
    return [r for r in requirements if r.marker is None or any(r.marker.evaluate(e) for e in environments)]


def closure(roots: list[Requirement], packages: dict[str, metadata.Distribution], left_out: set[str]) -> set[str]:
    """The names of `roots` and of everything they need, directly or not, but for what is left out."""
    seen: set[tuple[str, frozenset[str]]] = set()
    queue = list(roots)
    while queue:
        requirement = queue.pop()
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        if key in seen or key[0] in left_out:
            continue
        if key[0] not in packages:
            raise SystemExit(f'lock: {requirement} is not installed in {sys.prefix}: install it, then run this again')
        if not requirement.specifier.contains(packages[key[0]].version, prereleases=True):
            raise SystemExit(f'lock: {requirement} is wanted, {packages[key[0]].version} is installed in {sys.prefix}')
        seen.add(key)
        if key[0] not in LEAVES:
            queue.extend(needs(packages[key[0]], set(requirement.extras)))
    return {name for name, _ in seen}


def main() -> int:
    packages = installed()
    for name in sys.argv[1:] or ORDER:
        roots = wanted(name)
        names = {canonicalize_name(r.name) for r in roots}
        if name not in WITHOUT_DEPENDENCIES:
            names = closure(roots, packages, LEFT_OUT.get(name, set()))
        public = {n: packages[n].version.partition('+')[0] for n in sorted(names)}
        text = ''.join(f'{n}=={version}\n' for n, version in public.items())
        header = f'# Written by tools/lock.py from {name}.in; change that file, not this one.\n'
        (REQUIREMENTS / f'{name}.txt').write_text(header + text, encoding='utf-8')
        print(f'requirements/{name}.txt: {len(names)} packages')
    return 0


if __name__ == '__main__':
    sys.exit(main())
