pub fn attention(q: &[f32], k: &[f32], v: &[f32], scale: f32, [n, m, d, dv]: [usize; 4]) -> (Vec<f32>, Vec<f32>) {
    let mut weights = vec![0.0; n * m];
    let mut out = vec![0.0; n * dv];
    for i in 0..n {
        let row = &mut weights[i * m..(i + 1) * m];
        for j in 0..m {
            let score: f32 = (0..d).map(|c| q[i * d + c] * k[j * d + c]).sum();
            row[j] = score * scale;
        }
        let top = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        row.iter_mut().for_each(|w| *w = (*w - top).exp());
        let total: f32 = row.iter().sum();
        row.iter_mut().for_each(|w| *w /= total);
        for j in 0..m {
            for c in 0..dv {
                out[i * dv + c] += row[j] * v[j * dv + c];
            }
        }
    }
    (out, weights)
}
