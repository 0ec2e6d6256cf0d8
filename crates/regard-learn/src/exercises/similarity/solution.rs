fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

fn length(row: &[f32]) -> f32 {
    dot(row, row).sqrt()
}

pub fn similarity(q: &[f32], k: &[f32], [n, m, d]: [usize; 3]) -> (Vec<f32>, Vec<f32>) {
    let mut dots = vec![0.0; n * m];
    let mut cosines = vec![0.0; n * m];
    for i in 0..n {
        for j in 0..m {
            let (a, b) = (&q[i * d..(i + 1) * d], &k[j * d..(j + 1) * d]);
            dots[i * m + j] = dot(a, b);
            if length(a) > 0.0 && length(b) > 0.0 {
                cosines[i * m + j] = dot(a, b) / length(a) / length(b);
            }
        }
    }
    (dots, cosines)
}
