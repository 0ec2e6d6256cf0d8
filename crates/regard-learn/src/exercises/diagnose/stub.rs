/// model(tokens) gives logits [n, vocab] and weights [heads, n, n]; returns the name of the defect, or "healthy".
pub fn diagnose(
    model: &mut dyn FnMut(&[usize]) -> (Vec<f32>, Vec<f32>),
    [vocab, max_len, heads]: [usize; 3],
) -> &'static str {
    todo!()
}
