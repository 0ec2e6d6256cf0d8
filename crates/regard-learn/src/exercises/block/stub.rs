/// tokens [t], embed [vocab, e], four matrices [e, e], w_in [e, f], w_out [f, e], gains [e] -> logits [t, vocab]
#[allow(clippy::too_many_arguments)]
pub fn block(
    tokens: &[usize], embed: &[f32], w_q: &[f32], w_k: &[f32], w_v: &[f32], w_o: &[f32], w_in: &[f32], w_out: &[f32],
    gain_1: &[f32], gain_2: &[f32], gain_3: &[f32], [t, vocab, e, f, heads]: [usize; 5],
) -> Vec<f32> {
    todo!()
}
