/// x [n, e], y [m, e], four matrices [e, e] -> out [n, e], weights [heads, n, m]
pub fn multi_head(
    x: &[f32], y: &[f32], w_q: &[f32], w_k: &[f32], w_v: &[f32], w_o: &[f32], [n, m, e, heads]: [usize; 4],
) -> (Vec<f32>, Vec<f32>) {
    todo!()
}
