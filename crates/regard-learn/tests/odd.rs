//! Odd but right answers pass; what is no answer fails; no mutant fits a right answer.

mod common;

use common::{Judge, exercises, is_pass, languages, run_all, said};
use regard_learn::exercise::{Exercise, Lang};
use regard_learn::exercises::find;
use regard_learn::judge::Status;

fn named(name: &str) -> &'static Exercise {
    find(name).unwrap_or_else(|| panic!("there is no {name}"))
}

/// Right answers that are written in another way than ours.
const ODD_PYTHON: &[(&str, &str)] = &[
    // float64 all through
    (
        "attention",
        "import numpy as np\ndef attention(q, k, v, scale):\n    q, k, v = (x.astype(np.float64) for x in (q, k, v))\n    s = q @ k.T * \
            scale\n    e = np.exp(s - s.max(1, keepdims=True))\n    w = e / e.sum(1, keepdims=True)\n    return w @ v, w\n",
    ),
    // nested lists
    (
        "attention",
        "import math\ndef attention(q, k, v, scale):\n    q, k, v = q.tolist(), k.tolist(), v.tolist()\n    out, weights = [], []\n    \
            for a in q:\n        s = [sum(x * y for x, y in zip(a, b)) * scale for b in k]\n        top = max(s)\n        e = \
            [math.exp(x - top) for x in s]\n        w = [x / sum(e) for x in e]\n        weights.append(w)\n        out.append([sum(x * \
            row[c] for x, row in zip(w, v)) for c in range(len(v[0]))])\n    return out, weights\n",
    ),
    // keys backwards
    (
        "attention",
        "import numpy as np\ndef attention(q, k, v, scale):\n    k, v = k[::-1], v[::-1]\n    s = q @ k.T * np.float32(scale)\n    e = \
            np.exp(s - s.max(1, keepdims=True))\n    w = e / e.sum(1, keepdims=True)\n    return w @ v, w[:, ::-1]\n",
    ),
    // a small number in the denominator
    (
        "softmax",
        "import numpy as np\ndef softmax(x):\n    top = x.max(1, keepdims=True)\n    e = np.exp(x - np.where(np.isneginf(top), 0, \
            top))\n    return e / (e.sum(1, keepdims=True) + 1e-9)\n",
    ),
    // einsum, a generator of results, a list in place of a tuple
    (
        "attention",
        "import numpy as np\ndef attention(q, k, v, scale):\n    s = np.einsum('id,jd->ij', q, k) * scale\n    w = np.exp(s - \
            s.max(-1)[:, None])\n    w /= w.sum(-1)[:, None]\n    return [np.einsum('ij,jc->ic', w, v), w]\n",
    ),
    // the scale on q, halves on either side
    (
        "attention",
        "import numpy as np\ndef attention(q, k, v, scale):\n    s = (q * np.float32(scale)) @ k.T\n    w = np.exp(s - np.max(s, 1, \
            keepdims=True))\n    w = w / np.sum(w, 1, keepdims=True)\n    return w @ v, w\n",
    ),
    // an online softmax, key by key
    (
        "attention",
        "import numpy as np\ndef attention(q, k, v, scale):\n    n, m = len(q), len(k)\n    top = np.full(n, -np.inf); total = \
            np.zeros(n); acc = np.zeros((n, v.shape[1])); s = q @ k.T * np.float32(scale)\n    for j in range(m):\n        new = \
            np.maximum(top, s[:, j])\n        alpha = np.exp(top - new); p = np.exp(s[:, j] - new)\n        total = total * alpha + p; \
            acc = acc * alpha[:, None] + p[:, None] * v[j]; top = new\n    return acc / total[:, None], np.exp(s - top[:, None]) / \
            total[:, None]\n",
    ),
    // logarithms: exp(log softmax)
    (
        "softmax",
        "import numpy as np\ndef softmax(x):\n    top = x.max(1, keepdims=True)\n    y = x - np.where(np.isneginf(top), 0, top)\n    \
            with np.errstate(divide='ignore', invalid='ignore'):\n        r = np.exp(y - np.log(np.exp(y).sum(1, keepdims=True)))\n    \
            return np.where(np.isneginf(x).all(1, keepdims=True), 0, r)\n",
    ),
    // norms by the library, Fortran order, prints
    (
        "similarity",
        "import numpy as np\ndef similarity(q, k):\n    print('hello')\n    dots = np.asfortranarray(q @ k.T)\n    a = np.linalg.norm(q, \
            axis=1)[:, None]; b = np.linalg.norm(k, axis=1)[None]\n    with np.errstate(invalid='ignore', divide='ignore'):\n        c = \
            dots / a / b\n    c[np.broadcast_to((a == 0) | (b == 0), c.shape)] = 0\n    return dots, c\n",
    ),
    // normalise first
    (
        "similarity",
        "import numpy as np\ndef unit(x):\n    n = np.linalg.norm(x, axis=1, keepdims=True)\n    return np.divide(x, n, \
            out=np.zeros_like(x), where=n > 0)\ndef similarity(q, k):\n    return q @ k.T, unit(q) @ unit(k).T\n",
    ),
    // the scale as an array without dimensions
    (
        "scaled_attention",
        "import numpy as np\ndef scaled_attention(q, k, v, var_q, var_k):\n    scale = np.array((q.shape[-1] * var_q * var_k) ** \
            -0.5)\n    s = q @ k.T * scale\n    w = np.exp(s - s.max(1, keepdims=True)); w /= w.sum(1, keepdims=True)\n    return scale, \
            w @ v\n",
    ),
    // heads by slicing
    (
        "multi_head",
        "import numpy as np\ndef multi_head(x, y, w_q, w_k, w_v, w_o, heads):\n    d = x.shape[1] // heads\n    outs, ws = [], []\n    \
            for h in range(heads):\n        c = slice(h * d, (h + 1) * d)\n        s = (x @ w_q[:, c]) @ (y @ w_k[:, c]).T / d ** \
            0.5\n        w = np.exp(s - s.max(1, keepdims=True)); w = w / w.sum(1, keepdims=True)\n        ws.append(w); outs.append(w @ \
            (y @ w_v[:, c]))\n    return np.concatenate(outs, 1) @ w_o, ws\n",
    ),
    // repeated heads
    (
        "grouped_attention",
        "import numpy as np\ndef grouped_attention(q, k, v):\n    g = len(q) // len(k)\n    k, v = np.repeat(k, g, 0), np.repeat(v, g, \
            0)\n    s = np.einsum('hnd,hmd->hnm', q, k) / np.sqrt(q.shape[2])\n    w = np.exp(s - s.max(-1, keepdims=True)); w /= \
            w.sum(-1, keepdims=True)\n    return w @ v\n",
    ),
    // complex numbers for the turn
    (
        "decode",
        "import numpy as np\ndef decode(q, k, v, past_k, past_v, base):\n    t, d = q.shape; p = len(past_k); h = d // 2\n    z = \
            np.exp(1j * (p + np.arange(t))[:, None] * base ** (-np.arange(h) / h))\n    def turn(x):\n        y = (x[:, :h] + 1j * x[:, \
            h:]) * z\n        return np.concatenate([y.real, y.imag], 1)\n    q, keys, values = turn(q), np.concatenate([past_k, \
            turn(k)]), np.concatenate([past_v, v])\n    s = q @ keys.T / d ** 0.5\n    s[np.arange(p + t)[None] > p + np.arange(t)[:, \
            None]] = -np.inf\n    w = np.exp(s - s.max(1, keepdims=True)); w /= w.sum(1, keepdims=True)\n    return w @ values, keys, \
            values\n",
    ),
];

#[test]
fn odd_but_right_answers_pass_in_python() {
    if !languages().contains(&Lang::Python) {
        return;
    }
    run_all(ODD_PYTHON.iter().map(|(name, source)| move |judge: &Judge| is_pass(&judge.seeds(named(name), Lang::Python, source, 5))));
}

const ODD_RUST: &[(&str, &str)] = &[
    // f64 inside
    (
        "attention",
        "pub fn attention(q: &[f32], k: &[f32], v: &[f32], scale: f32, [n, m, d, dv]: [usize; 4]) -> (Vec<f32>, Vec<f32>) {
    let (mut out, mut weights) = (vec![], vec![]);
    for i in 0..n {
        let s: Vec<f64> = (0..m).map(|j| (0..d).map(|c| q[i * d + c] as f64 * k[j * d + c] as f64).sum::<f64>() * scale as f64).collect();
        let top = s.iter().cloned().fold(f64::MIN, f64::max);
        let total: f64 = s.iter().map(|x| (x - top).exp()).sum();
        let w: Vec<f64> = s.iter().map(|x| (x - top).exp() / total).collect();
        out.extend((0..dv).map(|c| (0..m).map(|j| w[j] * v[j * dv + c] as f64).sum::<f64>() as f32));
        weights.extend(w.iter().map(|x| *x as f32));
    }
    (out, weights)
}",
    ),
    // keys backwards
    (
        "attention",
        "pub fn attention(q: &[f32], k: &[f32], v: &[f32], scale: f32, [n, m, d, dv]: [usize; 4]) -> (Vec<f32>, Vec<f32>) {
    let (mut out, mut weights) = (vec![0.0; n * dv], vec![0.0; n * m]);
    for i in 0..n {
        let s: Vec<f32> = (0..m).map(|j| (0..d).rev().map(|c| q[i * d + c] * scale * k[j * d + c]).sum::<f32>()).collect();
        let top = s.iter().cloned().fold(f32::MIN, f32::max);
        let total: f32 = s.iter().rev().map(|x| (x - top).exp()).sum();
        for j in (0..m).rev() {
            weights[i * m + j] = (s[j] - top).exp() / total;
            for c in 0..dv { out[i * dv + c] += weights[i * m + j] * v[j * dv + c]; }
        }
    }
    (out, weights)
}",
    ),
    // a small number in the denominator
    (
        "softmax",
        "pub fn softmax(x: &[f32], [_, m]: [usize; 2]) -> Vec<f32> {
    x.chunks(m).flat_map(|row| {
        let top = row.iter().cloned().fold(f32::NEG_INFINITY, f32::max);
        let top = if top == f32::NEG_INFINITY { 0.0 } else { top };
        let total = row.iter().map(|y| (y - top).exp()).sum::<f32>() + 1e-9;
        row.iter().map(|y| (y - top).exp() / total).collect::<Vec<f32>>()
    }).collect()
}",
    ),
];

#[test]
fn odd_but_right_answers_pass_in_rust() {
    if !languages().contains(&Lang::Rust) {
        return;
    }
    run_all(ODD_RUST.iter().map(|(name, source)| move |judge: &Judge| is_pass(&judge.seeds(named(name), Lang::Rust, source, 5))));
}

/// A function of the exercise's name with this body.
fn python(exercise: &Exercise, body: &str) -> String {
    format!("import numpy as np\ndef {}(*args):\n    {body}\n", exercise.name)
}

#[test]
fn an_empty_file_zeros_and_a_returned_input_fail() {
    if !languages().contains(&Lang::Python) {
        return;
    }
    let none = |e: &Exercise| e.results.len();
    let work = exercises().into_iter().flat_map(|e| {
        let zeros = "return np.zeros((3, 3))".to_owned();
        let many = if none(e) == 1 { "return args[0] * 0".to_owned() } else { format!("return ({})", "args[0] * 0, ".repeat(none(e))) };
        let input = if none(e) == 1 { "return args[0]".to_owned() } else { format!("return ({})", "args[0], ".repeat(none(e))) };
        [String::new(), python(e, &zeros), python(e, &many), python(e, &input), python(e, "pass")]
            .into_iter()
            .map(move |source| (e, source))
    });
    run_all(work.map(|(e, source)| {
        move |judge: &Judge| {
            let verdict = judge.check(e, Lang::Python, &source);
            let named = verdict.diagnosis.is_some() && e.name != "diagnose";
            if verdict.status == Status::Pass || verdict.status == Status::Todo || named {
                Err(format!("{}: {source}: {}", e.name, said(&verdict)))
            } else {
                Ok(())
            }
        }
    }));
}
