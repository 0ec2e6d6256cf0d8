fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

pub fn backward_tile(
    q: &[f32], k: &[f32], v: &[f32], d_out: &[f32], out: &[f32], row_max: &[f32], row_sum: &[f32], keep: &[bool], p: f32,
    [n, t, d, dv]: [usize; 4],
) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let scale = 1.0 / (d as f32).sqrt();
    let (mut dq, mut dk, mut d_v) = (vec![0.0; n * d], vec![0.0; t * d], vec![0.0; t * dv]);
    for i in 0..n {
        let (q, d_out, out) = (&q[i * d..(i + 1) * d], &d_out[i * dv..(i + 1) * dv], &out[i * dv..(i + 1) * dv]);
        let delta = dot(d_out, out);
        for j in 0..t {
            let (k, v) = (&k[j * d..(j + 1) * d], &v[j * dv..(j + 1) * dv]);
            let weight = (dot(q, k) * scale - row_max[i]).exp() / row_sum[i];
            let factor = if keep[i * t + j] { 1.0 / (1.0 - p) } else { 0.0 };
            let d_score = weight * (dot(d_out, v) * factor - delta);
            for c in 0..d {
                dq[i * d + c] += d_score * k[c] * scale;
                dk[j * d + c] += d_score * q[c] * scale;
            }
            for c in 0..dv {
                d_v[j * dv + c] += weight * factor * d_out[c];
            }
        }
    }
    (dq, dk, d_v)
}
