/// q [n, d], k [m, d], v [m, dv] -> out [n, dv], weights [n, m]. Rows one after the other: q[i * d + c].
pub fn attention(q: &[f32], k: &[f32], v: &[f32], scale: f32, [n, m, d, dv]: [usize; 4]) -> (Vec<f32>, Vec<f32>) {
    todo!()
}
