"""Declares the two operators whose declarations torchvision's Python half looks up when its C library did not load.

torch calls this at the end of its own import. Nothing calls the operators: SGLang needs torchvision for image models.
"""

import torch

SCHEMAS = {
    'torchvision::nms': '(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor',
    'torchvision::qnms': '(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor',
}


def declare() -> None:
    """Raises RuntimeError beside a GPU: the stock packages belong there."""
    if torch.cuda.is_available():
        raise RuntimeError('kv-sglang-cpu: expected no GPU, got one; uninstall it and install the stock sglang')
    for name, schema in SCHEMAS.items():
        torch.library.define(name, schema)
