fn turn(x: &[f32], d: usize, first: usize, base: f32) -> Vec<f32> {
    let half = d / 2;
    let mut turned = x.to_vec();
    for row in 0..x.len() / d {
        for i in 0..half {
            let angle = (first + row) as f32 / base.powf(2.0 * i as f32 / d as f32);
            let (a, b) = (x[row * d + i], x[row * d + i + half]);
            turned[row * d + i] = a * angle.cos() - b * angle.sin();
            turned[row * d + i + half] = a * angle.sin() + b * angle.cos();
        }
    }
    turned
}

pub fn decode(
    q: &[f32], k: &[f32], v: &[f32], past_k: &[f32], past_v: &[f32], base: f32, [t, p, d, dv]: [usize; 4],
) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let q = turn(q, d, p, base);
    let k = turn(k, d, p, base);
    let keys = [past_k, &k].concat();
    let values = [past_v, v].concat();
    let scale = 1.0 / (d as f32).sqrt();
    let mut out = vec![0.0; t * dv];
    for i in 0..t {
        let seen = p + i + 1;
        let scores: Vec<f32> = (0..seen).map(|j| (0..d).map(|c| q[i * d + c] * keys[j * d + c]).sum::<f32>() * scale).collect();
        let top = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total: f32 = scores.iter().map(|s| (s - top).exp()).sum();
        for j in 0..seen {
            for c in 0..dv {
                out[i * dv + c] += (scores[j] - top).exp() / total * values[j * dv + c];
            }
        }
    }
    (out, keys, values)
}
