/// q [n, d], k [m, d], v [m, dv]; query i sees key j iff j <= i + offset -> out [n, dv], weights [n, m]
pub fn causal_attention(q: &[f32], k: &[f32], v: &[f32], offset: isize, [n, m, d, dv]: [usize; 4]) -> (Vec<f32>, Vec<f32>) {
    todo!()
}
