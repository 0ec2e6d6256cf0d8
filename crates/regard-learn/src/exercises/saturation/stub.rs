/// q [t, n, d], k [t, m, d] -> table [3, 3]: (entropy, largest weight, slack) x (mean, standard error, median)
pub fn saturation(q: &[f32], k: &[f32], scale: f32, [t, n, m, d]: [usize; 4]) -> Vec<f32> {
    todo!()
}
