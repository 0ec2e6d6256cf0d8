/// q, k [t, d], v [t, dv], past_k [p, d] (turned), past_v [p, dv] -> out [t, dv], keys [p+t, d], values [p+t, dv]
pub fn decode(
    q: &[f32], k: &[f32], v: &[f32], past_k: &[f32], past_v: &[f32], base: f32, [t, p, d, dv]: [usize; 4],
) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    todo!()
}
