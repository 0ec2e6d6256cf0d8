fn matmul(x: &[f32], w: &[f32], e: usize) -> Vec<f32> {
    let rows = x.len() / e;
    let entry = |i: usize, j: usize| (0..e).map(|c| x[i * e + c] * w[c * e + j]).sum();
    (0..rows * e).map(|at| entry(at / e, at % e)).collect()
}

pub fn multi_head(
    x: &[f32], y: &[f32], w_q: &[f32], w_k: &[f32], w_v: &[f32], w_o: &[f32], [n, m, e, heads]: [usize; 4],
) -> (Vec<f32>, Vec<f32>) {
    let (q, k, v) = (matmul(x, w_q, e), matmul(y, w_k, e), matmul(y, w_v, e));
    let d = e / heads;
    let scale = 1.0 / (d as f32).sqrt();
    let column = |h: usize, c: usize| h * d + c;
    let mut joined = vec![0.0; n * e];
    let mut weights = vec![0.0; heads * n * m];
    for h in 0..heads {
        for i in 0..n {
            let score = |j: usize| (0..d).map(|c| q[i * e + column(h, c)] * k[j * e + column(h, c)]).sum::<f32>() * scale;
            let scores: Vec<f32> = (0..m).map(score).collect();
            let top = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let total: f32 = scores.iter().map(|s| (s - top).exp()).sum();
            for j in 0..m {
                let w = (scores[j] - top).exp() / total;
                weights[(h * n + i) * m + j] = w;
                for c in 0..d {
                    joined[i * e + column(h, c)] += w * v[j * e + column(h, c)];
                }
            }
        }
    }
    (matmul(&joined, w_o, e), weights)
}
