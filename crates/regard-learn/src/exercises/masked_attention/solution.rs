pub fn masked_attention(
    q: &[f32], k: &[f32], v: &[f32], mask: &[bool], lengths: &[usize], [b, n, m, d, dv]: [usize; 5],
) -> (Vec<f32>, Vec<f32>) {
    let scale = 1.0 / (d as f32).sqrt();
    let mut out = vec![0.0; b * n * dv];
    let mut weights = vec![0.0; b * n * m];
    for a in 0..b {
        for i in 0..n {
            let row = a * n + i;
            let visible = |j: usize| mask[i * m + j] && j < lengths[a];
            let keys: Vec<usize> = (0..m).filter(|&j| visible(j)).collect();
            let score = |j: usize| (0..d).map(|c| q[row * d + c] * k[(a * m + j) * d + c]).sum::<f32>() * scale;
            let scores: Vec<f32> = keys.iter().map(|&j| score(j)).collect();
            let top = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let e: Vec<f32> = scores.iter().map(|s| (s - top).exp()).collect();
            let total: f32 = e.iter().sum();
            for (&j, e) in keys.iter().zip(&e) {
                weights[row * m + j] = e / total;
                for c in 0..dv {
                    out[row * dv + c] += e / total * v[(a * m + j) * dv + c];
                }
            }
        }
    }
    (out, weights)
}
