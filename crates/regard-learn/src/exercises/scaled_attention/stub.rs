/// q [n, d], k [m, d], v [m, dv], variances of the entries of q and k -> scale, out [n, dv]
pub fn scaled_attention(q: &[f32], k: &[f32], v: &[f32], var_q: f32, var_k: f32, [n, m, d, dv]: [usize; 4]) -> (f32, Vec<f32>) {
    todo!()
}
