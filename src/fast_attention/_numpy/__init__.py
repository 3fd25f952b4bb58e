"""The NumPy backend: the readable specification of the arithmetic, and an honest fast rival.

attention   one call: tiles of heads and query rows, each through its keys chunk by chunk
_tiles      which heads and rows make a tile, and the views of one
_visible    which keys a row may see by position: causal, window, lengths
_scores     the final scores of one block, tile rows x chunk keys
_plan       how a call would be cut, for explain
_at_once    a small call without options, in one piece
_online     the online softmax over the chunks of a tile, and the careful redo
_rounding   from the arithmetic to the output type

reduce      softmax, log_softmax, logsumexp and softmax_vjp: blocks of rows              _softmax
"""

from ._online import attention
from ._plan import planned
from ._softmax import reduce

__all__ = ["attention", "planned", "reduce"]
