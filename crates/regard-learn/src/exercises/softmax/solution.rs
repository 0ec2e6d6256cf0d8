pub fn softmax(x: &[f32], [n, m]: [usize; 2]) -> Vec<f32> {
    let mut weights = vec![0.0; n * m];
    for i in 0..n {
        let row = &x[i * m..(i + 1) * m];
        let top = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if row.iter().all(|y| *y == f32::NEG_INFINITY) {
            continue;
        }
        let e: Vec<f32> = row.iter().map(|y| (y - top).exp()).collect();
        let total: f32 = e.iter().sum();
        for j in 0..m {
            weights[i * m + j] = e[j] / total;
        }
    }
    weights
}
