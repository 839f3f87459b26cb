"""Stands in for SGLang's compiled kernels, which need AVX-512: whatever is imported is there, and cannot be called."""

from collections.abc import Callable
from typing import NoReturn


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if not name.endswith('_cpu'):
        raise AttributeError(f'sgl_kernel.{name}: expected the compiled sgl-kernel, got its stand-in for CPUs')

    def refuse(*arguments: object, **options: object) -> NoReturn:
        raise NotImplementedError(f'sgl_kernel.{name}: expected the compiled sgl-kernel, got its stand-in for CPUs')

    return refuse
