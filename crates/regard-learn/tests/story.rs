//! The story of the guide: a customary test of a class accepts six wrong ones.

mod common;

use common::languages;
use regard_learn::exercise::Lang;
use std::process::Command;

const STORY: &str = r#"
import re, sys
import numpy as np

guide, text = open(sys.argv[1]).read(), open(sys.argv[2]).read()
test = re.search(r"```python\n(def test_scaled_attention.*?)```", guide, re.S).group(1)
lines = text.split("class ScaledAttention", 1)[1].split("\n\nIt wraps", 1)[0]
source = "class ScaledAttention" + "\n".join(line[4:] if line.startswith("    ") else line for line in lines.split("\n"))

def softmax(s, axis):
    e = np.exp(s - s.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)

def mixed(weights, v):
    return weights @ v, weights

ANSWERS = {
    "right": lambda q, k, v, c: mixed(softmax(q @ k.T * c, 1), v),
    "no scale": lambda q, k, v, c: mixed(softmax(q @ k.T, 1), v),
    "divided by d": lambda q, k, v, c: mixed(softmax(q @ k.T * c * c, 1), v),
    "times the root": lambda q, k, v, c: mixed(softmax(q @ k.T / c, 1), v),
    "scaled after": lambda q, k, v, c: mixed(softmax(q @ k.T, 1) * c, v),
    "over queries": lambda q, k, v, c: mixed(softmax(q @ k.T * c, 0), v),
    "transposed": lambda q, k, v, c: mixed(softmax(k @ q.T * c, 1), v),
}
x = np.random.default_rng(2).normal(size=(5, 64))
outs = {}
for name, attention in ANSWERS.items():
    space = {"np": np, "attention": attention}
    exec(source, space)
    exec(test, space)
    space["test_scaled_attention"](space["ScaledAttention"])
    outs[name] = space["ScaledAttention"](64, np.random.default_rng(0))(x)
for name, out in outs.items():
    assert name == "right" or np.abs(out - outs["right"]).max() > 1e-3, name
try:
    space["test_scaled_attention"](lambda width, rng: (lambda x: x[:, :3]))
except AssertionError:
    print("accepted", len(outs) - 1)
"#;

#[test]
fn the_customary_test_accepts_six_wrong_classes() {
    if !languages().contains(&Lang::Python) {
        return;
    }
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/learn.md");
    let text = concat!(env!("CARGO_MANIFEST_DIR"), "/src/exercises/multi_head/text.md");
    let python = std::env::var("REGARD_LEARN_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let output = Command::new(python).args(["-c", STORY, root, text]).output().expect("Python starts");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "accepted 6\n", "{}", String::from_utf8_lossy(&output.stderr));
}
