pub fn absorb(
    row_max: &mut [f32], row_sum: &mut [f32], acc: &mut [f32], scores: &[f32], v: &[f32], [n, t, dv]: [usize; 3],
) {
    for i in 0..n {
        let row = &scores[i * t..(i + 1) * t];
        let new_max = row.iter().copied().fold(row_max[i], f32::max);
        if new_max == f32::NEG_INFINITY {
            continue;
        }
        let alpha = (row_max[i] - new_max).exp();
        row_max[i] = new_max;
        row_sum[i] *= alpha;
        acc[i * dv..(i + 1) * dv].iter_mut().for_each(|x| *x *= alpha);
        for j in 0..t {
            let p = (row[j] - new_max).exp();
            row_sum[i] += p;
            for c in 0..dv {
                acc[i * dv + c] += p * v[j * dv + c];
            }
        }
    }
}
