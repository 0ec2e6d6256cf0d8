/// q [n, d], k [t, d], v [t, dv], d_out, out [n, dv], row_max, row_sum [n], keep [n, t] -> dq [n, d], dk [t, d], dv [t, dv]
pub fn backward_tile(
    q: &[f32], k: &[f32], v: &[f32], d_out: &[f32], out: &[f32], row_max: &[f32], row_sum: &[f32], keep: &[bool], p: f32,
    [n, t, d, dv]: [usize; 4],
) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    todo!()
}
