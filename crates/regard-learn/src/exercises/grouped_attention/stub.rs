/// q [h, n, d], k [hk, m, d], v [hk, m, dv] -> out [h, n, dv]; h/hk neighbouring query heads share a key/value head
pub fn grouped_attention(q: &[f32], k: &[f32], v: &[f32], [h, hk, n, m, d, dv]: [usize; 6]) -> Vec<f32> {
    todo!()
}
