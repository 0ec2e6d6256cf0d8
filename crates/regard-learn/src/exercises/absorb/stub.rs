/// row_max [n], row_sum [n], acc [n, dv] are updated with scores [n, t] and v [t, dv]
pub fn absorb(
    row_max: &mut [f32], row_sum: &mut [f32], acc: &mut [f32], scores: &[f32], v: &[f32], [n, t, dv]: [usize; 3],
) {
    todo!()
}
