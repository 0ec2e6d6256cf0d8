// The options of attention, one per row: its name, what the stubs say of its type, and what it is. Read twice: by `options.rs`, which makes the
// keywords of every function and their parser of it, and by `cargo xtask stubs`, which writes the stubs. A new option is a row here and an arm
// in `settings.rs`.
option_table! {
    every function {
        mask: "ArrayLike | Mask | None", "who may attend to whom: bool, float (added to the scores), or a Mask";
        causal: "_Causal | None", "False, True or 'top_left', 'bottom_right'";
        scale: "float | np.floating[Any] | None", "what the dot products are multiplied with";
        softcap: "float | np.floating[Any] | None", "cap * tanh(score / cap)";
        window: "_Window | None", "(left, right) neighbours that are visible";
        q_offset: "_Offset | None", "where query 0 stands on the key axis";
        kv_lens: "_Integers | None", "how many keys of each batch entry exist";
        bias: "ArrayLike | None", "added to the scores";
        alibi: "ArrayLike | bool | None", "slopes, or True";
        relative: "ArrayLike | None", "a number per distance, added to the scores";
        top_k: "SupportsIndex | None", "only the so many highest scores of each query";
        sink: "ArrayLike | None", "one more logit per head";
        threads: "SupportsIndex | None", "how many threads";
        level: "_Level | None", "which vector instructions";
    }
    functions with dropout {
        dropout_p: "float | np.floating[Any] | None", "the probability that a weight is dropped";
        seed: "SupportsIndex | None", "which ones";
    }
}
