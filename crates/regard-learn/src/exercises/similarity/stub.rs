/// q [n, d], k [m, d] -> dots [n, m], cosines [n, m]; arrays are rows one after the other: q[i * d + c].
pub fn similarity(q: &[f32], k: &[f32], [n, m, d]: [usize; 3]) -> (Vec<f32>, Vec<f32>) {
    todo!()
}
