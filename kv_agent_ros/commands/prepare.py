"""`kv_agent prepare`: what a first start would otherwise have to wait for, done once."""

import argparse
from collections.abc import Sequence
import time

from kv_agent_ros.config import CACHE_DIR, expand
from kv_agent_ros.errors import ModelUnavailableError
from kv_agent_ros.inference.local_model import BUNDLED, load_local_model
from kv_agent_ros.kvcache.arithmetic import warm_up


def main(arguments: Sequence[str]) -> int:
    """0 = the model loads, 1 = it does not."""
    parser = argparse.ArgumentParser(prog='kv_agent prepare', description='Convert the model into the cache folder.')
    parser.add_argument('--model', default=BUNDLED, help='bundled, a .gguf file or a model directory')
    parser.add_argument('--cache-dir', default=CACHE_DIR, help=f'folder for converted models ({CACHE_DIR})')
    options = parser.parse_args(arguments)
    begun_s = time.monotonic()
    try:
        model = load_local_model(options.model, expand(options.cache_dir) / 'models', 1, print)
    except ModelUnavailableError as error:
        print(f'the model does not load: {error}')
        return 1
    warm_up()
    print(f'{model.name} is ready ({time.monotonic() - begun_s:.1f} s)')
    return 0
