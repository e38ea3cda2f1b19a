"""The screen of an open head: it estimates the logits of all labels, to score the best ones only.

Not in the paper. A product of the attended value with the label's readout, the first-order
expansion at a reference value, takes the place of the steps after the attention.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.heads.attention import split_heads, to_tokens
from models.heads.name_votes import to_log
from models.heads.zero_shot import ZeroShotMLDecoder

NUM_NAMES = 32
"""Names whose votes a label's keys have. To find 99.9 % of the 20 best of 20,000 nouns, 192 labels
have to be scored; 223 with 16 names, 152 with all 1,000."""
MAX_SCORED = 4096  # bounds the memory of a run
_STRIDE = 2  # of pooled tokens, in rows and columns
_NEVER = -1e30


class Stage(NamedTuple):
    """Keeps factor * n^wanted * L^labels of L labels, if an answer needs n of them."""

    factor: float
    wanted: float
    labels: float


# The exponents fit 878 and 20,000 names, and the 20 and 100 best of them.
FIRST = Stage(3.2, 3 / 8, 3 / 5)
SECOND = Stage(4.5, 2 / 3, 1 / 5)


class Screen(nn.Module):
    """Scores those labels of a head that may be wanted; two stages of estimates choose them."""

    reference: Tensor  # mean value of photos, [D]; see `center`

    def __init__(
        self,
        head: ZeroShotMLDecoder,
        grid: tuple[int, int],
        first: Stage = FIRST,
        second: Stage = SECOND,
    ) -> None:
        """`head` is in eval mode; `grid` are the rows and columns of tokens."""
        super().__init__()
        self.head = head
        self.grid = grid
        self.first, self.second = first, second
        self.register_buffer("reference", torch.zeros(head.config.decoder_width))

    @torch.no_grad()
    def center(self, tokens: Tensor) -> None:
        """Sets the reference to the mean value of photos, given as tokens [B, S, C]."""
        values = self.head.layer.attention.value(self.head.remember(tokens))
        self.reference.copy_(values.mean(dim=(0, 1)))

    def describe(self, queries: Tensor) -> dict[str, Tensor]:
        """Maps label queries [L, K] to keys, arguments of `forward`.

        - `projected` [L, D], as in the queries: separate, they are read faster
        - `readouts` [L, D + 1]: the gradient of the logit without votes with respect to the
          attended value before the output projection, at the reference; and the offset
        - with prototypes, `votes` [L, V], the largest ones, and `names` int64 [L, V], theirs
        """
        layer, width = self.head.layer, self.head.config.decoder_width
        attended = queries[:, :width] + layer.attention.out(self.reference)
        hidden = layer.norm2(attended)
        inner = functional.relu(layer.linear1(hidden))
        decoded = hidden + layer.linear2(inner)
        logit = self.head.pool(layer.norm3(decoded))  # [L, 1]

        gradient = _differentiate(layer.norm3, decoded, self.head.pool.weight)
        passed = (gradient @ layer.linear2.weight) * (inner > 0)
        gradient = gradient + passed @ layer.linear1.weight
        gradient = _differentiate(layer.norm2, attended, gradient)
        readouts = gradient @ layer.attention.out.weight
        offsets = logit - readouts @ self.reference.unsqueeze(-1)
        keys = {
            "projected": queries[:, width : 2 * width],
            "readouts": torch.cat([readouts, offsets], dim=-1),
        }
        if self.head.votes is not None:
            count = min(NUM_NAMES, self.head.config.num_prototypes)
            keys["votes"], keys["names"] = queries[:, 2 * width :].topk(count, dim=-1)
        return keys

    def forward(  # noqa: PLR0913, PLR0917 - the inputs of the graph
        self,
        tokens: Tensor,
        queries: Tensor,
        scale: Tensor,
        shift: Tensor,
        wanted: Tensor,
        projected: Tensor,
        readouts: Tensor,
        votes: Tensor | None = None,
        names: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Scores the labels that may have the best ranks, scale * logit + shift.

        Takes tokens [B, S, C], queries [L, K], scale and shift [L], `wanted` int64 [B] from 1, and
        the keys of the queries. An answer needs the `wanted` best labels, and all of ranks from 0.

        Returns logits [B, k] of the labels at positions int64 [B, k], the best estimates first; how
        many of them each photo needs, int64 [B], more than k if that is over `MAX_SCORED`; and the
        memory [B, S, D].
        """
        head, attention = self.head, self.head.layer.attention
        width = head.config.decoder_width
        memory = head.remember(to_tokens(tokens))
        keys, values = attention.key(memory), attention.value(memory)
        size = torch.ones_like(shift).sum()  # L as a tensor

        # First stage: the mean value for all labels, and the votes of a few names.
        mean = functional.pad(values.mean(dim=1), (0, 1), value=1.0)
        logits = mean @ readouts.T  # [B, L]
        voted = torch.zeros_like(logits)
        shares = None if head.votes is None else head.votes.read(tokens)  # [B, P]
        if shares is not None and votes is not None and names is not None:
            near = shares.gather(1, names.reshape(1, -1).expand(shares.shape[0], -1))
            voted = to_log((near.unflatten(1, names.shape) * votes).sum(dim=-1))
        rank = (logits + voted) * scale + shift
        needed = _count(self.first, rank, wanted, size)  # [B]
        left, count = _best(rank, needed, 2 * MAX_SCORED)  # [B, count]

        # Second stage: the values that each label left attends to, in pooled tokens.
        projections, read = (functional.embedding(left, rows) for rows in (projected, readouts))
        queried, worth = (
            split_heads(labels, attention.num_heads)
            @ split_heads(self._pool(photo), attention.num_heads).transpose(-2, -1)
            for labels, photo in ((projections, keys), (read[..., :width], values))
        )  # [B, heads, count, T]
        logits = (queried.softmax(dim=-1) * worth).sum(dim=(1, 3)) + read[..., width]
        scales, shifts = (
            functional.embedding(left, x.unsqueeze(-1)).squeeze(-1) for x in (scale, shift)
        )
        rank = (logits + voted.gather(1, left)) * scales + shifts
        # A photo's labels must not depend on how many the others of the batch need.
        counted = torch.arange(count) < needed.unsqueeze(-1)
        rank = torch.where(counted, rank, _NEVER)
        needed = torch.minimum(_count(self.second, rank, wanted, size), needed)
        best, _ = _best(rank, needed, MAX_SCORED)

        # The head itself, for the labels that are left.
        positions = left.gather(1, best)
        rows = functional.embedding(positions, queries)
        decoded = head.layer.decode(rows[..., :width], rows[..., width : 2 * width], memory)
        logits = head.pool(decoded).squeeze(-1)
        if shares is not None:
            logits = logits + to_log((rows[..., 2 * width :] @ shares.unsqueeze(-1)).squeeze(-1))
        return logits, positions, needed, memory

    def _pool(self, x: Tensor) -> Tensor:
        # [B, S, D] -> [B, T, D]
        plane = x.transpose(1, 2).unflatten(-1, self.grid)
        pooled = functional.avg_pool2d(plane, _STRIDE, ceil_mode=True, count_include_pad=False)
        return pooled.flatten(2).transpose(1, 2)


def _count(stage: Stage, rank: Tensor, wanted: Tensor, size: Tensor) -> Tensor:
    """Returns how many labels each photo needs, int64 [B], from ranks [B, n] and L as a tensor."""
    most = torch.maximum((rank >= 0).sum(dim=-1), wanted)
    kept = (stage.factor * most**stage.wanted * size**stage.labels).ceil()
    return torch.minimum(kept, size).long()


def _best(rank: Tensor, needed: Tensor, most: int) -> tuple[Tensor, int]:
    """Returns the positions [B, count] of the best ranks, best first, and their count."""
    count: int = needed.max().clamp_max(most).item()  # type: ignore[assignment]  # an integer
    torch._check(count >= 1)
    torch._check(count <= rank.shape[1])
    return rank.topk(count, dim=-1).indices, count


def _differentiate(norm: nn.LayerNorm, x: Tensor, gradient: Tensor) -> Tensor:
    """Carries the gradient [1 or L, D] of a norm's output back to its input x [L, D]."""
    centred = x - x.mean(dim=-1, keepdim=True)
    inverse = (centred.square().mean(dim=-1, keepdim=True) + norm.eps).rsqrt()
    normal = centred * inverse
    scaled = gradient * norm.weight
    along = (scaled * normal).mean(dim=-1, keepdim=True)
    return (scaled - scaled.mean(dim=-1, keepdim=True) - normal * along) * inverse
