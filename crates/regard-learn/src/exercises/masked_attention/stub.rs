/// q [b, n, d], k [b, m, d], v [b, m, dv], mask [n, m] (true = visible), lengths [b] -> out [b, n, dv], weights [b, n, m]
pub fn masked_attention(
    q: &[f32], k: &[f32], v: &[f32], mask: &[bool], lengths: &[usize], [b, n, m, d, dv]: [usize; 5],
) -> (Vec<f32>, Vec<f32>) {
    todo!()
}
