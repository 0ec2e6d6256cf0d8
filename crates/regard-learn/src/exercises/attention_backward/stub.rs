/// q [n, d], k [m, d], v [m, dv], d_out [n, dv], mask [n, m] (true = visible) -> dq [n, d], dk [m, d], dv [m, dv]
pub fn attention_backward(
    q: &[f32], k: &[f32], v: &[f32], d_out: &[f32], mask: &[bool], [n, m, d, dv]: [usize; 4],
) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    todo!()
}
