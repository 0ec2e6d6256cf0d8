import numpy as np


def block(tokens, embed, w_q, w_k, w_v, w_o, w_in, w_out, gain_1, gain_2, gain_3, heads):
    """tokens [t], embed [vocab, e], four matrices [e, e], w_in [e, f], w_out [f, e], gains [e] -> logits [t, vocab]"""
    raise NotImplementedError
