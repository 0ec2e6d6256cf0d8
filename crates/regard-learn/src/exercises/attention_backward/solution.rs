fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

pub fn attention_backward(
    q: &[f32], k: &[f32], v: &[f32], d_out: &[f32], mask: &[bool], [n, m, d, dv]: [usize; 4],
) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let scale = 1.0 / (d as f32).sqrt();
    let row = |x: &[f32], i: usize, width: usize| x[i * width..(i + 1) * width].to_vec();
    let mut weights = vec![0.0; n * m];
    for i in 0..n {
        let keys: Vec<usize> = (0..m).filter(|&j| mask[i * m + j]).collect();
        let scores: Vec<f32> = keys.iter().map(|&j| dot(&row(q, i, d), &row(k, j, d)) * scale).collect();
        let top = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total: f32 = scores.iter().map(|s| (s - top).exp()).sum();
        for (&j, s) in keys.iter().zip(&scores) {
            weights[i * m + j] = (s - top).exp() / total;
        }
    }

    let mut d_scores = vec![0.0; n * m];
    for i in 0..n {
        let d_weights: Vec<f32> = (0..m).map(|j| dot(&row(d_out, i, dv), &row(v, j, dv))).collect();
        let delta = dot(&row(&weights, i, m), &d_weights);
        for j in 0..m {
            d_scores[i * m + j] = weights[i * m + j] * (d_weights[j] - delta);
        }
    }

    let (mut dq, mut dk, mut d_v) = (vec![0.0; n * d], vec![0.0; m * d], vec![0.0; m * dv]);
    for i in 0..n {
        for j in 0..m {
            let ds = d_scores[i * m + j];
            for c in 0..d {
                dq[i * d + c] += ds * k[j * d + c] * scale;
                dk[j * d + c] += ds * q[i * d + c] * scale;
            }
            for c in 0..dv {
                d_v[j * dv + c] += weights[i * m + j] * d_out[i * dv + c];
            }
        }
    }
    (dq, dk, d_v)
}
