"""A strict reader for one mapping of a YAML file: every entry is asked for by name, checked, and none is left over.

Knows nothing of policies. Each refusal is a ConfigError with the dotted path of the entry, what was expected and got.
"""

from collections.abc import Iterator, Mapping
import math

import yaml

from kv_agent_ros.errors import ConfigError


def read_yaml(name: str, text: str) -> object:
    """The document of a YAML text. Raises ConfigError when it is malformed or says an entry twice."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is not None:
            _refuse_doubles(name, root)
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f'{name}: expected YAML: {error}') from error


def _refuse_doubles(path: str, node: yaml.Node) -> None:
    """YAML readers keep the last of two equal keys in silence; a limit must not be lifted that way."""
    if not isinstance(node, yaml.MappingNode):
        return
    seen: set[object] = set()
    for key, value in node.value:
        if key.value in seen:
            raise ConfigError(f'{path}: the entry {key.value!r} stands twice; keep one')
        seen.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
        _refuse_doubles(f'{path}.{key.value}' if isinstance(key, yaml.ScalarNode) else path, value)


class Section:
    """One mapping; read its entries, then `close()`, which refuses entries nobody asked for."""

    def __init__(self, path: str, content: object) -> None:
        if not isinstance(content, Mapping) or not all(isinstance(key, str) for key in content):
            raise ConfigError(f'{path}: expected a mapping with text keys, got {content!r:.80}')
        self.path = path
        self._left: dict[str, object] = dict(content)

    def close(self) -> None:
        """Raise ConfigError when an entry was never read: it is misspelled or from another version."""
        if self._left:
            raise ConfigError(f'{self.path}: unknown entries {sorted(self._left)}; correct or remove them')

    def text(self, name: str) -> str:
        """A non-empty string."""
        value = self._take(name)
        if not isinstance(value, str) or not value:
            raise self._refusal(name, 'a non-empty string', value)
        return value

    def number(self, name: str, minimum: float, maximum: float) -> float:
        """A finite number within [minimum, maximum]."""
        value = self._take(name)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not math.isfinite(float(str(value))) or not minimum <= float(str(value)) <= maximum:
            raise self._refusal(name, f'a number from {minimum:g} to {maximum:g}', value)
        return float(str(value))

    def count(self, name: str, minimum: int, maximum: int) -> int:
        """A whole number within [minimum, maximum]."""
        value = self._take(name)
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
            raise self._refusal(name, f'a whole number from {minimum} to {maximum}', value)
        return value

    def names(self, name: str) -> tuple[str, ...]:
        """A list of distinct non-empty strings, possibly empty."""
        value = self._take(name)
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise self._refusal(name, 'a list of names', value)
        if len(set(value)) != len(value):
            raise self._refusal(name, 'each name once', value)
        return tuple(value)

    def section(self, name: str) -> 'Section':
        """A nested mapping."""
        return Section(f'{self.path}.{name}', self._take(name))

    def sections(self) -> Iterator[tuple[str, 'Section']]:
        """All remaining entries, each a mapping; nothing is left after."""
        for name in list(self._left):
            yield name, self.section(name)

    def numbers(self, minimum: float, maximum: float) -> dict[str, float]:
        """All remaining entries, each a number in the range; nothing is left after."""
        return {name: self.number(name, minimum, maximum) for name in list(self._left)}

    def _take(self, name: str) -> object:
        if name not in self._left:
            raise ConfigError(f'{self.path}: expected the entry {name!r}; add it')
        return self._left.pop(name)

    def _refusal(self, name: str, expected: str, value: object) -> ConfigError:
        return ConfigError(f'{self.path}.{name}: expected {expected}, got {value!r:.80}')
