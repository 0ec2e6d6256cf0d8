pub fn causal_attention(q: &[f32], k: &[f32], v: &[f32], offset: isize, [n, m, d, dv]: [usize; 4]) -> (Vec<f32>, Vec<f32>) {
    let scale = 1.0 / (d as f32).sqrt();
    let mut weights = vec![0.0; n * m];
    let mut out = vec![0.0; n * dv];
    for i in 0..n {
        let visible = |j: usize| j as isize <= i as isize + offset;
        let keys: Vec<usize> = (0..m).filter(|&j| visible(j)).collect();
        let score = |j: usize| (0..d).map(|c| q[i * d + c] * k[j * d + c]).sum::<f32>() * scale;
        let scores: Vec<f32> = keys.iter().map(|&j| score(j)).collect();
        let top = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let e: Vec<f32> = scores.iter().map(|s| (s - top).exp()).collect();
        let total: f32 = e.iter().sum();
        for (&j, e) in keys.iter().zip(&e) {
            weights[i * m + j] = e / total;
            for c in 0..dv {
                out[i * dv + c] += e / total * v[j * dv + c];
            }
        }
    }
    (out, weights)
}
