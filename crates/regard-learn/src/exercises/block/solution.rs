/// x [n, e] @ w [e, f]
fn matmul(x: &[f32], w: &[f32], e: usize, f: usize) -> Vec<f32> {
    let n = x.len() / e;
    (0..n * f).map(|at| (0..e).map(|c| x[at / f * e + c] * w[c * f + at % f]).sum()).collect()
}

fn norm(x: &[f32], gain: &[f32]) -> Vec<f32> {
    let e = gain.len();
    let row = |row: &[f32]| {
        let root = (row.iter().map(|x| x * x).sum::<f32>() / e as f32 + 1e-5).sqrt();
        row.iter().zip(gain).map(|(x, gain)| x / root * gain).collect::<Vec<f32>>()
    };
    x.chunks(e).flat_map(row).collect()
}

fn attention(x: &[f32], w: [&[f32]; 4], t: usize, e: usize, heads: usize) -> Vec<f32> {
    let [q, k, v] = [w[0], w[1], w[2]].map(|w| matmul(x, w, e, e));
    let d = e / heads;
    let mut joined = vec![0.0; t * e];
    for h in 0..heads {
        for i in 0..t {
            let score = |j: usize| (0..d).map(|c| q[i * e + h * d + c] * k[j * e + h * d + c]).sum::<f32>() / (d as f32).sqrt();
            let scores: Vec<f32> = (0..=i).map(score).collect();
            let top = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let total: f32 = scores.iter().map(|s| (s - top).exp()).sum();
            for (j, s) in scores.iter().enumerate() {
                for c in h * d..(h + 1) * d {
                    joined[i * e + c] += (s - top).exp() / total * v[j * e + c];
                }
            }
        }
    }
    matmul(&joined, w[3], e, e)
}

fn add(x: &mut [f32], more: &[f32]) {
    x.iter_mut().zip(more).for_each(|(x, y)| *x += y);
}

pub fn block(
    tokens: &[usize], embed: &[f32], w_q: &[f32], w_k: &[f32], w_v: &[f32], w_o: &[f32], w_in: &[f32], w_out: &[f32],
    gain_1: &[f32], gain_2: &[f32], gain_3: &[f32], [t, vocab, e, f, heads]: [usize; 5],
) -> Vec<f32> {
    let mut x: Vec<f32> = tokens.iter().flat_map(|token| embed[token * e..(token + 1) * e].to_vec()).collect();
    let mixed = attention(&norm(&x, gain_1), [w_q, w_k, w_v, w_o], t, e, heads);
    add(&mut x, &mixed);
    let mut inner = matmul(&norm(&x, gain_2), w_in, e, f);
    inner.iter_mut().for_each(|x| *x = x.max(0.0));
    add(&mut x, &matmul(&inner, w_out, f, e));
    let last = norm(&x, gain_3);
    (0..t * vocab).map(|at| (0..e).map(|c| last[at / vocab * e + c] * embed[at % vocab * e + c]).sum()).collect()
}
