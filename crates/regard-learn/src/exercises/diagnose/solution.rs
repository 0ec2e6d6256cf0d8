const TOLERANCE: f32 = 1e-3;

fn differ(a: &[f32], b: &[f32]) -> bool {
    a.iter().zip(b).any(|(x, y)| (x - y).abs() > TOLERANCE)
}

pub fn diagnose(
    model: &mut dyn FnMut(&[usize]) -> (Vec<f32>, Vec<f32>),
    [vocab, max_len, heads]: [usize; 3],
) -> &'static str {
    let n = max_len;
    let tokens: Vec<usize> = (0..n).map(|i| (3 * i + 1) % vocab).collect();
    let (logits, weights) = model(&tokens);
    let (again, _) = model(&tokens);
    if differ(&logits, &again) {
        return "dropout_on";
    }

    let at = |h: usize, i: usize, j: usize| weights[(h * n + i) * n + j];
    // Whether any head gives weight to such a pair.
    let some = |pair: &dyn Fn(usize, usize) -> bool| {
        (0..heads * n * n).any(|x| pair(x / n % n, x % n) && at(x / n / n, x / n % n, x % n) > TOLERANCE)
    };
    if some(&|i, j| j == i + 1) {
        return "future_leak";
    }
    if !some(&|i, j| j == i) {
        return "self_blind";
    }
    if !some(&|i, j| j + 4 <= i) {
        return "short_memory";
    }
    let rows: Vec<f32> = (0..heads * n).map(|x| (0..n).map(|j| at(x / n, x % n, j)).sum()).collect();
    let columns: Vec<f32> = (0..heads * n).map(|x| (0..n).map(|i| at(x / n, i, x % n)).sum()).collect();
    let ones = vec![1.0; heads * n];
    if differ(&rows, &ones) {
        return if differ(&columns, &ones) { "mask_after_softmax" } else { "wrong_axis" };
    }
    if (1..heads).all(|h| !differ(&weights[h * n * n..(h + 1) * n * n], &weights[..n * n])) {
        return "tied_heads";
    }

    // Another last token must not change earlier rows.
    let mut changed = tokens.clone();
    changed[n - 1] = (changed[n - 1] + 1) % vocab;
    if differ(&model(&changed).0[..(n - 1) * vocab], &logits[..(n - 1) * vocab]) {
        return "hidden_leak";
    }
    // Two early tokens trade places: the last row must notice.
    let mut traded = tokens.clone();
    traded.swap(0, 1);
    if !differ(&model(&traded).0[(n - 1) * vocab..], &logits[(n - 1) * vocab..]) {
        return "no_positions";
    }
    "healthy"
}
