"""transformers' QuantizedCache over keys and values of a file.

A process of its own, because its kernels are compiled at first use, which may take minutes or never end.

usage: python _quantization_hf.py KEYS_AND_VALUES.npz FOUND.npz BITS
"""

import sys

import numpy as np
import torch
from transformers import LlamaConfig
from transformers.cache_utils import QuantizedCache

GROUP = 64


def main(source: str, target: str, bits: str) -> None:
    """Its quanto backend, nothing left exact: the caller keeps the same tokens exact for everybody."""
    arrays = np.load(source)
    keys, values = (torch.from_numpy(arrays[name])[None] for name in ('keys', 'values'))
    _, rows, _, channels = keys.shape
    heads = {'num_attention_heads': rows, 'num_key_value_heads': rows, 'head_dim': channels}
    config = LlamaConfig(num_hidden_layers=1, hidden_size=rows * channels, **heads)
    cache = QuantizedCache('quanto', config, nbits=int(bits), q_group_size=GROUP, residual_length=1)
    cache.update(keys, values, 0)
    layer = cache.layers[0]
    found = [layer._dequantize(coded)[0].float().numpy() for coded in (layer._quantized_keys, layer._quantized_values)]
    np.savez(target, keys=found[0], values=found[1])


if __name__ == '__main__':
    main(*sys.argv[1:])
