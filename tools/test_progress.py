"""Turns ctest's verbose output on stdin into a line per test folder, and ends with one pytest-like line of the counts.

The output of a folder is shown only where it failed. The counts come from the result files in the folder given as the
argument; the exit code is 1 when a test failed, a folder broke, or no test ran at all.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
import re
import sys
import time
import xml.etree.ElementTree as ElementTree

START = re.compile(r'\s+Start\s+\d+: (?P<name>\S+)')
OUTPUT = re.compile(r'(?P<number>\d+): ?(?P<text>.*)')
END = re.compile(r'\s*\d+/\d+ Test\s+#(?P<number>\d+): (?P<name>\S+) \.*\s*(?P<verdict>.*?)\s+(?P<seconds>[\d.]+) sec')
CLOSING = re.compile(r'=+ (?P<counts>.*\d+ \w+.*) in [\d.:s ()]+=+')
KINDS = ('failed', 'error', 'passed', 'skipped')


def follow(lines: Iterable[str]) -> list[str]:
    """Print progress; the names of the folders that did not pass."""
    broken = []
    running: list[str] = []
    outputs: defaultdict[str, list[str]] = defaultdict(list)  # by the number of the test: several run at a time
    for line in lines:
        if match := START.match(line):
            running.append(match['name'])
            print(f'… test/{" and test/".join(running)}', flush=True)
        elif match := END.match(line):
            output = outputs.pop(match['number'], [])
            running.remove(match['name'])
            result = _counts(output) or match['verdict'].strip('*')
            print(f'test/{match["name"]}: {result} in {float(match["seconds"]):.1f} s', flush=True)
            if match['verdict'] != 'Passed':
                broken.append(match['name'])
                print(*(f'  | {text}' for text in output), sep='\n', flush=True)
        elif match := OUTPUT.match(line):
            outputs[match['number']].append(match['text'])
    return broken


def count(folder: Path) -> tuple[Counter[str], list[str]]:
    """Tests by outcome, and the names of those that failed, from every result file below `folder`."""
    counts: Counter[str] = Counter()
    failed = []
    for path in sorted(folder.rglob('*.xunit.xml')):
        for case in ElementTree.parse(path).getroot().iter('testcase'):
            outcome = _outcome(case)
            counts[outcome] += 1
            if outcome in ('failed', 'error'):
                failed.append(f'{case.get("classname")}::{case.get("name")}')
    return counts, failed


def _outcome(case: ElementTree.Element) -> str:
    for tag, outcome in (('failure', 'failed'), ('error', 'error'), ('skipped', 'skipped')):
        if case.find(tag) is not None:
            return outcome
    return 'passed'


def _counts(output: list[str]) -> str:
    closing = [match['counts'] for match in map(CLOSING.match, output) if match]
    return closing[-1] if closing else ''


def main() -> int:
    begun_s = time.monotonic()
    broken = follow(sys.stdin)
    counts, failed = count(Path(sys.argv[1]))
    for name in failed:
        print(f'FAILED {name}')
    for name in broken:
        print(f'BROKEN OR FAILED test/{name}')
    text = ', '.join(f'{counts[kind]} {kind}' for kind in KINDS if counts[kind]) or 'no tests ran'
    print(f' {text} in {time.monotonic() - begun_s:.2f}s '.center(80, '='), flush=True)
    return 1 if broken or failed or not counts['passed'] else 0


if __name__ == '__main__':
    sys.exit(main())
