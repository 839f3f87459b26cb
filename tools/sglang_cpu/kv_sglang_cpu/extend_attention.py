"""Attention of tokens that extend a prefix, one sequence after the other: their queries, the keys of everything."""

import torch
from torch.nn.functional import scaled_dot_product_attention


def extend_attention(
    backend: object,
    query: torch.Tensor,
    output: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_prefix_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    encoder_lens: torch.Tensor | None = None,
    scaling: float | None = None,
    enable_gqa: bool = False,
    causal: bool = False,
    is_cross_attn: bool = False,
    sliding_window_size: int | None = None,
) -> torch.Tensor:
    """Fills and returns `output`, (num_tokens, num_heads, head_dim) as `query` is."""
    if encoder_lens is not None or is_cross_attn or not causal:
        raise NotImplementedError('extend_attention: expected a causal decoder, got an encoder')
    window = sliding_window_size if sliding_window_size is not None and sliding_window_size > -1 else None
    lengths = zip(req_pool_indices, extend_prefix_lens.tolist(), extend_seq_lens.tolist(), strict=True)
    first = 0
    for request, num_cached, num_added in lengths:
        rows = req_to_token[request, : num_cached + num_added]
        output[first : first + num_added] = scaled_dot_product_attention(
            _heads_first(query[first : first + num_added], query.dtype),
            _heads_first(k_cache[rows], query.dtype),
            _heads_first(v_cache[rows], query.dtype),
            attn_mask=_visible(num_cached, num_added, window) if num_cached or window is not None else None,
            is_causal=not num_cached and window is None,
            scale=scaling,
            enable_gqa=enable_gqa,
        )[0].transpose(0, 1)
        first += num_added
    return output


def _heads_first(rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """(num_tokens, num_heads, head_dim) as (1, num_heads, num_tokens, head_dim)."""
    return rows.to(dtype).transpose(0, 1).unsqueeze(0)


def _visible(num_cached: int, num_added: int, window: int | None) -> torch.Tensor:
    """(num_added, num_cached + num_added): which keys each query sees; itself and, at most, `window` before it."""
    queries = torch.arange(num_cached, num_cached + num_added).unsqueeze(1)
    keys = torch.arange(num_cached + num_added).unsqueeze(0)
    seen = keys <= queries
    return seen if window is None else seen & (keys >= queries - window)
