import torch


def decode(q, k, v, past_k, past_v, base):
    """q, k [t, d], v [t, dv], past_k [p, d] (turned), past_v [p, dv] -> out [t, dv], keys [p+t, d], values [p+t, dv]"""
    raise NotImplementedError
