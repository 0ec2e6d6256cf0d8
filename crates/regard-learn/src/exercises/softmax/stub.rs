/// x [n, m] -> weights [n, m]; each row sums to 1. Rows one after the other: x[i * m + j].
pub fn softmax(x: &[f32], [n, m]: [usize; 2]) -> Vec<f32> {
    todo!()
}
