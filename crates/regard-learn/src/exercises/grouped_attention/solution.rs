pub fn grouped_attention(q: &[f32], k: &[f32], v: &[f32], [h, hk, n, m, d, dv]: [usize; 6]) -> Vec<f32> {
    let group = h / hk;
    let scale = 1.0 / (d as f32).sqrt();
    let mut out = vec![0.0; h * n * dv];
    for i in 0..h {
        let head = i / group;
        let (q, k, v) = (&q[i * n * d..(i + 1) * n * d], &k[head * m * d..(head + 1) * m * d], &v[head * m * dv..(head + 1) * m * dv]);
        for r in 0..n {
            let scores: Vec<f32> = (0..m).map(|j| (0..d).map(|c| q[r * d + c] * k[j * d + c]).sum::<f32>() * scale).collect();
            let top = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let total: f32 = scores.iter().map(|s| (s - top).exp()).sum();
            for j in 0..m {
                for c in 0..dv {
                    out[(i * n + r) * dv + c] += (scores[j] - top).exp() / total * v[j * dv + c];
                }
            }
        }
    }
    out
}
