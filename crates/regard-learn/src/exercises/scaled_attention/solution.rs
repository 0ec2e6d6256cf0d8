pub fn scaled_attention(q: &[f32], k: &[f32], v: &[f32], var_q: f32, var_k: f32, [n, m, d, dv]: [usize; 4]) -> (f32, Vec<f32>) {
    let scale = 1.0 / (d as f32 * var_q * var_k).sqrt();
    let mut out = vec![0.0; n * dv];
    for i in 0..n {
        let scores: Vec<f32> = (0..m).map(|j| (0..d).map(|c| q[i * d + c] * k[j * d + c]).sum::<f32>() * scale).collect();
        let top = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let e: Vec<f32> = scores.iter().map(|s| (s - top).exp()).collect();
        let total: f32 = e.iter().sum();
        for j in 0..m {
            for c in 0..dv {
                out[i * dv + c] += e[j] / total * v[j * dv + c];
            }
        }
    }
    (scale, out)
}
