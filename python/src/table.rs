// The options of attention, one per row: name, type in the stubs, description. Included by `options.rs`, which makes the keywords of every
// function, and by `cargo xtask stubs`, which writes the stubs. A new option is a row here and an arm in `settings.rs`.
option_table! {
    every function {
        mask: "ArrayLike | Mask | None", "which keys each query attends to: bool, float (added to the scores), or a Mask";
        causal: "_Causal | None", "False, True or 'top_left', 'bottom_right'";
        scale: "bool | float | np.floating[Any] | None", "factor of the dot products; True or None: 1 / sqrt(head_dim), False: none";
        softcap: "float | np.floating[Any] | None", "cap * tanh(score / cap)";
        window: "_Window | None", "(left, right) neighbours that are visible; an integer is both";
        q_offset: "_Offset | None", "position of query 0 on the key axis";
        kv_lens: "_Integers | None", "number of keys of each batch entry";
        bias: "ArrayLike | None", "added to the scores";
        alibi: "ArrayLike | bool | None", "slopes, or True";
        relative: "ArrayLike | None", "bias per distance, added to the scores";
        top_k: "SupportsIndex | None", "number of highest scores kept per query";
        sink: "ArrayLike | None", "one additional logit per head";
        threads: "SupportsIndex | None", "number of threads";
        level: "_Level | None", "SIMD level";
    }
    functions with dropout {
        dropout_p: "float | np.floating[Any] | None", "the probability that a weight is dropped";
        seed: "SupportsIndex | None", "seed of the dropped weights, required with dropout_p";
    }
}
